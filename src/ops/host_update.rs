//! Updates and sums in the host's memory, for the backends whose tensors lie there.

use super::pieces::{Each, PIECE, on_pieces};
use super::sums::sum;
use super::update::Sgd;

/// [`super::UpdateOps::sgd`] in the host's memory: `gradient` becomes the new parameter, `velocity` changes in place. It
/// starts as zeros, which gives what the rule says of the first step. A gradient that others hold, too, is `shared`, and
/// `gradient` memory for the result.
pub(super) fn sgd_on_host(
    param: &[f32],
    shared: Option<&[f32]>,
    gradient: &mut [f32],
    velocity: Option<&mut [f32]>,
    step: &Sgd,
    each: Each,
) {
    let mut velocities = velocity.map(|velocity| velocity.chunks_mut(PIECE));
    let mut sources = shared.map(|shared| shared.chunks(PIECE));
    let pieces = param.chunks(PIECE).zip(gradient.chunks_mut(PIECE)).map(|(param, gradient)| {
        let source = sources.as_mut().and_then(Iterator::next);
        (param, source, gradient, velocities.as_mut().and_then(Iterator::next))
    });
    on_pieces(pieces, each, |(param, source, gradient, velocity)| {
        // A piece stays in the cache for what follows.
        source.iter().for_each(|source| gradient.copy_from_slice(source));
        sgd_of_piece(param, gradient, velocity.as_deref_mut(), step);
    });
}

/// [`super::HostOps::add`] in the host's memory.
pub(super) fn add_on_host(left: &mut [f32], right: &[f32], each: Each) {
    on_pieces(left.chunks_mut(PIECE).zip(right.chunks(PIECE)), each, |(left, right)| {
        left.iter_mut().zip(*right).for_each(|(left, right)| *left += right);
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
    let mut squares = vec![0.0; values.len().div_ceil(PIECE)];
    on_pieces(values.chunks(PIECE).zip(&mut squares), each, |(piece, square)| {
        **square = sum(piece, |value| value * value);
    });
    squares.into_iter().sum::<f64>().sqrt()
}
