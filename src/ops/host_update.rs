//! Updates in the host's memory, for the backends whose tensors lie there.

use rayon::prelude::*;

use super::sums::sum;
use super::update::Sgd;

/// Values that one task handles.
const PIECE: usize = 1 << 14;

/// [`super::UpdateOps::sgd`] in the host's memory: `gradient` becomes the new parameter, `velocity` changes in place. It
/// starts as zeros, which gives what the rule says of the first step.
pub(super) fn sgd_on_host(param: &[f32], gradient: &mut [f32], velocity: Option<&mut [f32]>, step: &Sgd) {
    let (rate, decay, momentum) = (step.rate as f32, step.weight_decay as f32, step.momentum as f32);
    let pieces = param.par_chunks(PIECE).zip(gradient.par_chunks_mut(PIECE));
    let Some(velocity) = velocity else {
        return pieces.for_each(|(param, gradient)| {
            for (param, gradient) in param.iter().zip(gradient) {
                *gradient = param - rate * (*gradient + decay * param);
            }
        });
    };
    pieces.zip(velocity.par_chunks_mut(PIECE)).for_each(|((param, gradient), velocity)| {
        for ((param, gradient), velocity) in param.iter().zip(gradient).zip(velocity) {
            let slope = *gradient + decay * param;
            *velocity = momentum * *velocity + slope;
            *gradient = param - rate * if step.nesterov { slope + momentum * *velocity } else { *velocity };
        }
    });
}

/// [`super::UpdateOps::norm`], summed in the host's memory in an order that no thread changes.
pub(super) fn norm_on_host(values: &[f32]) -> f64 {
    let squares: Vec<f64> = values.par_chunks(PIECE).map(|piece| sum(piece, |value| value * value)).collect();
    squares.iter().sum::<f64>().sqrt()
}
