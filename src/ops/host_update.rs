//! Updates in the host's memory, for the backends whose tensors lie there.

use std::sync::Mutex;

use super::sums::sum;
use super::update::Sgd;

/// Values that one task handles.
const PIECE: usize = 1 << 14;

/// Calls a function once with each number below the first argument, on threads of the backend's choice.
pub(super) type Each = fn(usize, &(dyn Fn(usize) + Sync));

/// [`super::UpdateOps::sgd`] in the host's memory: `gradient` becomes the new parameter, `velocity` changes in place. It
/// starts as zeros, which gives what the rule says of the first step.
pub(super) fn sgd_on_host(param: &[f32], gradient: &mut [f32], velocity: Option<&mut [f32]>, step: &Sgd, each: Each) {
    let mut velocities = velocity.map(|velocity| velocity.chunks_mut(PIECE));
    let pieces = param.chunks(PIECE).zip(gradient.chunks_mut(PIECE));
    let pieces =
        pieces.map(|(param, gradient)| Mutex::new((param, gradient, velocities.as_mut().and_then(Iterator::next))));
    let pieces: Vec<_> = pieces.collect();
    each(pieces.len(), &|i| {
        let mut piece = pieces[i].lock().expect("nobody else takes this piece");
        let (param, gradient, velocity) = &mut *piece;
        sgd_of_piece(param, gradient, velocity.as_deref_mut(), step);
    });
}

fn sgd_of_piece(param: &[f32], gradient: &mut [f32], velocity: Option<&mut [f32]>, step: &Sgd) {
    let (rate, decay, momentum) = (step.rate as f32, step.weight_decay as f32, step.momentum as f32);
    let Some(velocity) = velocity else {
        for (param, gradient) in param.iter().zip(gradient) {
            *gradient = param - rate * (*gradient + decay * param);
        }
        return;
    };
    for ((param, gradient), velocity) in param.iter().zip(gradient).zip(velocity) {
        let slope = *gradient + decay * param;
        *velocity = momentum * *velocity + slope;
        *gradient = param - rate * if step.nesterov { slope + momentum * *velocity } else { *velocity };
    }
}

/// [`super::UpdateOps::norm`], summed in the host's memory in an order that no thread changes.
pub(super) fn norm_on_host(values: &[f32], each: Each) -> f64 {
    let pieces: Vec<&[f32]> = values.chunks(PIECE).collect();
    let squares: Vec<Mutex<f64>> = pieces.iter().map(|_| Mutex::new(0.0)).collect();
    each(pieces.len(), &|i| {
        *squares[i].lock().expect("nobody else takes this piece") = sum(pieces[i], |value| value * value);
    });
    let square = |square: Mutex<f64>| square.into_inner().expect("no task panics");
    squares.into_iter().map(square).sum::<f64>().sqrt()
}
