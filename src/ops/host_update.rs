//! Updates and sums in the host's memory, for the backends whose tensors lie there.

use super::pieces::{PIECE, ParallelFor, on_pieces};
use super::update::Sgd;

/// Partial sums side by side: what the widest registers hold.
const WIDTH: usize = 16;
/// Values per run, which is summed in f32.
const RUN: usize = 1024;

/// [`super::UpdateOps::sgd`] in the host's memory: `gradient` becomes the new parameter, `velocity` changes in place;
/// it starts as zeros, which gives the rule's first step. If the gradient has other references, it is passed as
/// `shared` and `gradient` is only memory for the result.
pub(super) fn sgd_on_host(
    param: &[f32],
    shared: Option<&[f32]>,
    gradient: &mut [f32],
    velocity: Option<&mut [f32]>,
    step: &Sgd,
    parallel_for: ParallelFor,
) {
    let mut velocities = velocity.map(|velocity| velocity.chunks_mut(PIECE));
    let mut sources = shared.map(|shared| shared.chunks(PIECE));
    let pieces = param.chunks(PIECE).zip(gradient.chunks_mut(PIECE)).map(|(param, gradient)| {
        let source = sources.as_mut().and_then(Iterator::next);
        (param, source, gradient, velocities.as_mut().and_then(Iterator::next))
    });
    on_pieces(pieces, parallel_for, |(param, source, gradient, velocity)| {
        // Copied by pieces, so that each stays in the cache for the update.
        source.iter().for_each(|source| gradient.copy_from_slice(source));
        sgd_of_piece(param, gradient, velocity.as_deref_mut(), step);
    });
}

/// [`super::HostOps::add`] in the host's memory.
pub(super) fn add_on_host(left: &mut [f32], right: &[f32], parallel_for: ParallelFor) {
    on_pieces(left.chunks_mut(PIECE).zip(right.chunks(PIECE)), parallel_for, |(left, right)| {
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

/// [`super::UpdateOps::norm`] in the host's memory, summed in an order independent of threads.
pub(super) fn norm_on_host(values: &[f32], parallel_for: ParallelFor) -> f64 {
    let mut squares = vec![0.0; values.len().div_ceil(PIECE)];
    on_pieces(values.chunks(PIECE).zip(&mut squares), parallel_for, |(piece, square)| {
        **square = sum(piece, |value| value * value);
    });
    squares.into_iter().sum::<f64>().sqrt()
}

/// A fast sum: up to 64 terms per f32 partial sum, partial sums added in f64.
fn sum(values: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    values.chunks(RUN).map(|run| sum_of_run(run, &term)).sum()
}

fn sum_of_run(values: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    let (chunks, rest) = values.as_chunks::<WIDTH>();
    let mut sums = [0.0_f32; WIDTH];
    for chunk in chunks {
        for i in 0..WIDTH {
            sums[i] += term(chunk[i]);
        }
    }
    let rest: f32 = rest.iter().map(|value| term(*value)).sum();
    sums.into_iter().map(f64::from).sum::<f64>() + f64::from(rest)
}
