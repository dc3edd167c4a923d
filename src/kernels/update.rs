//! Updates and sums in the host's memory, for the backends whose tensors lie there.

use std::mem::MaybeUninit;
use std::ptr::from_mut;

use super::pieces::{PIECE, ParallelFor, on_pieces};

/// Partial sums side by side: what the widest registers hold.
const WIDTH: usize = 16;
/// Values per run, which is summed in f32.
const RUN: usize = 1024;

/// The constants of one step of `torch.optim.SGD` with dampening 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    pub rate: f64,
    /// Momentum; 0 keeps no velocity.
    pub momentum: f64,
    pub weight_decay: f64,
    /// Nesterov's look-ahead.
    pub nesterov: bool,
}

/// The constants of one step of `torch.optim.AdamW`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    pub rate: f64,
    /// How much of each moment stays.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    pub weight_decay: f64,
    /// 1 for the first step.
    pub step: usize,
}

/// The constants of one step of LARS.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lars {
    pub rate: f64,
    pub momentum: f64,
    pub weight_decay: f64,
    pub trust_coefficient: f64,
    /// Whether the parameter is one-dimensional: such take plain SGD without decay.
    pub vector: bool,
}

impl Lars {
    /// What the gradient with its decay is multiplied by, from the norms of parameter and gradient.
    fn trust(&self, [weight, slope]: [f32; 2]) -> f32 {
        // As in timm's LARS; with the formula alone, weights of zero would stay zero.
        if weight == 0.0 {
            return 1.0;
        }
        weight * self.trust_coefficient as f32 / (slope + weight * self.weight_decay as f32 + 1e-12)
    }
}

impl AdamW {
    /// What moments that began at zero are divided by.
    pub fn corrections(&self) -> [f64; 2] {
        self.betas.map(|beta| 1.0 - beta.powi(self.step as i32))
    }
}

/// A gradient, or a piece of one, and the memory for the new parameter.
pub enum Gradient<'a> {
    /// The parameter takes the gradient's place.
    Own(&'a mut [f32]),
    /// Others read the gradient, too; there is new memory.
    Shared(&'a [f32], &'a mut [MaybeUninit<f32>]),
}

impl Gradient<'_> {
    fn values(&self) -> &[f32] {
        match self {
            Self::Own(values) => values,
            Self::Shared(values, _) => values,
        }
    }

    fn pieces(&mut self) -> Vec<Gradient<'_>> {
        match self {
            Self::Own(values) => values.chunks_mut(PIECE).map(Gradient::Own).collect(),
            Self::Shared(values, memory) => {
                let pieces = values.chunks(PIECE).zip(memory.chunks_mut(PIECE));
                pieces.map(|(values, memory)| Gradient::Shared(values, memory)).collect()
            }
        }
    }

    /// The gradient in the memory for the parameter. A piece that is copied stays in the cache for the update.
    fn in_place(&mut self) -> &mut [f32] {
        match self {
            Self::Own(values) => values,
            Self::Shared(values, memory) => {
                assert_eq!(memory.len(), values.len(), "there is memory for each value");
                for (to, value) in memory.iter_mut().zip(*values) {
                    to.write(*value);
                }
                // SAFETY: all of it has just been written.
                unsafe { &mut *(from_mut::<[MaybeUninit<f32>]>(memory) as *mut [f32]) }
            }
        }
    }
}

/// `g += weight_decay * p; v = momentum * v + g; p -= rate * (v, or g + momentum * v for Nesterov)`: the new parameter
/// is written to the memory of `gradient`, `velocity` changes in place; it starts as zeros, which gives the rule's
/// first step.
pub fn sgd(
    param: &[f32],
    mut gradient: Gradient<'_>,
    velocity: Option<&mut [f32]>,
    step: &Sgd,
    parallel_for: ParallelFor,
) {
    let mut velocities = velocity.map(|velocity| velocity.chunks_mut(PIECE));
    let pieces = param.chunks(PIECE).zip(gradient.pieces());
    let pieces = pieces.map(|(param, gradient)| (param, gradient, velocities.as_mut().and_then(Iterator::next)));
    on_pieces(pieces, parallel_for, |(param, gradient, velocity)| {
        sgd_of_piece(param, gradient.in_place(), velocity.as_deref_mut(), step);
    });
}

/// Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization": as [`sgd`], with moments that start as zeros.
pub fn adamw(
    param: &[f32],
    mut gradient: Gradient<'_>,
    moments: [&mut [f32]; 2],
    step: &AdamW,
    parallel_for: ParallelFor,
) {
    let [first, second] = moments.map(|moment| moment.chunks_mut(PIECE));
    let pieces = param.chunks(PIECE).zip(gradient.pieces()).zip(first.zip(second));
    on_pieces(pieces, parallel_for, |((param, gradient), (first, second))| {
        adamw_of_piece(param, gradient.in_place(), [first, second], step);
    });
}

/// You, Gitman, Ginsburg 2017, "Large Batch Training of Convolutional Networks": as [`sgd`].
pub fn lars(param: &[f32], mut gradient: Gradient<'_>, velocity: &mut [f32], step: &Lars, parallel_for: ParallelFor) {
    let norm = |values: &[f32]| norm(values, parallel_for) as f32;
    let (trust, decay) = match step.vector {
        true => (1.0, 0.0),
        false => (step.trust([norm(param), norm(gradient.values())]), step.weight_decay as f32),
    };
    let (rate, momentum) = (step.rate as f32, step.momentum as f32);
    let pieces = param.chunks(PIECE).zip(gradient.pieces()).zip(velocity.chunks_mut(PIECE));
    on_pieces(pieces, parallel_for, |((param, gradient), velocity)| {
        for ((param, gradient), velocity) in param.iter().zip(gradient.in_place()).zip(velocity.iter_mut()) {
            *velocity = *velocity * momentum + (*gradient + param * decay) * trust * rate;
            *gradient = param - *velocity;
        }
    });
}

/// `left += right`.
pub fn add(left: &mut [f32], right: &[f32], parallel_for: ParallelFor) {
    combine(left, right, parallel_for, |left, right| left + right);
}

/// `left = left * shares[0] + right * shares[1]`.
pub fn blend(left: &mut [f32], right: &[f32], shares: [f64; 2], parallel_for: ParallelFor) {
    let [kept, new] = shares.map(|share| share as f32);
    combine(left, right, parallel_for, |left, right| left * kept + right * new);
}

fn combine(left: &mut [f32], right: &[f32], parallel_for: ParallelFor, value: impl Fn(f32, f32) -> f32 + Sync) {
    on_pieces(left.chunks_mut(PIECE).zip(right.chunks(PIECE)), parallel_for, |(left, right)| {
        left.iter_mut().zip(*right).for_each(|(left, right)| *left = value(*left, *right));
    });
}

/// `moment = moment * alpha + gradient^2 * (1 - alpha)`, and `gradient /= sqrt(moment) + eps`.
pub fn by_rms(gradient: &mut [f32], moment: &mut [f32], [alpha, eps]: [f64; 2], parallel_for: ParallelFor) {
    let [alpha, rest, eps] = [alpha, 1.0 - alpha, eps].map(|it| it as f32);
    on_pieces(gradient.chunks_mut(PIECE).zip(moment.chunks_mut(PIECE)), parallel_for, |(gradient, moment)| {
        for (gradient, moment) in gradient.iter_mut().zip(moment.iter_mut()) {
            *moment = *moment * alpha + *gradient * *gradient * rest;
            *gradient /= moment.sqrt() + eps;
        }
    });
}

/// Replaces each value.
pub fn map(values: &mut [f32], parallel_for: ParallelFor, value: impl Fn(f32) -> f32 + Sync) {
    on_pieces(values.chunks_mut(PIECE), parallel_for, |piece| piece.iter_mut().for_each(|of| *of = value(*of)));
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

fn adamw_of_piece(param: &[f32], gradient: &mut [f32], [first, second]: [&mut [f32]; 2], step: &AdamW) {
    let blend = step.betas.map(|beta| [beta as f32, (1.0 - beta) as f32]);
    let [correction1, correction2] = step.corrections();
    let (rate, correction, eps) = ((step.rate / correction1) as f32, correction2 as f32, step.eps as f32);
    let kept = (1.0 - step.rate * step.weight_decay) as f32;
    for (((param, gradient), first), second) in param.iter().zip(gradient).zip(first).zip(second) {
        *first = *first * blend[0][0] + *gradient * blend[0][1];
        *second = *second * blend[1][0] + *gradient * *gradient * blend[1][1];
        *gradient = param * kept - *first / ((*second / correction).sqrt() + eps) * rate;
    }
}

/// The Euclidean norm, summed in an order independent of threads.
pub fn norm(values: &[f32], parallel_for: ParallelFor) -> f64 {
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
