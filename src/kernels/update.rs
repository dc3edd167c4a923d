//! Updates and sums in the host's memory, for the backends whose tensors lie there.

use std::iter::repeat;
use std::mem::MaybeUninit;

use super::activation::Activation;
use super::pieces::{PIECE, ParallelFor, on_pieces};
use super::vector::vectorized;

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

/// A parameter and its gradient, or pieces of both, and the memory for the new parameter.
pub enum Parameter<'a> {
    /// The parameter's own.
    InPlace(&'a mut [f32], &'a [f32]),
    /// That of the gradient.
    InGradient(&'a [f32], &'a mut [f32]),
    /// New memory: others read both.
    Apart(&'a [f32], &'a [f32], &'a mut [MaybeUninit<f32>]),
}

impl Parameter<'_> {
    /// The parameter and the gradient.
    fn values(&self) -> [&[f32]; 2] {
        match self {
            Self::InPlace(param, gradient) => [param, gradient],
            Self::InGradient(param, gradient) => [param, gradient],
            Self::Apart(param, gradient, _) => [param, gradient],
        }
    }

    fn pieces(&mut self) -> Vec<Parameter<'_>> {
        match self {
            Self::InPlace(param, gradient) => {
                let pieces = param.chunks_mut(PIECE).zip(gradient.chunks(PIECE));
                pieces.map(|(param, gradient)| Parameter::InPlace(param, gradient)).collect()
            }
            Self::InGradient(param, gradient) => {
                let pieces = param.chunks(PIECE).zip(gradient.chunks_mut(PIECE));
                pieces.map(|(param, gradient)| Parameter::InGradient(param, gradient)).collect()
            }
            Self::Apart(param, gradient, memory) => {
                assert_eq!(memory.len(), param.len(), "there is memory for each value");
                let pieces = param.chunks(PIECE).zip(gradient.chunks(PIECE)).zip(memory.chunks_mut(PIECE));
                pieces.map(|((param, gradient), memory)| Parameter::Apart(param, gradient, memory)).collect()
            }
        }
    }

    /// Writes the `value` of each value, its gradient and its state.
    fn update<S>(&mut self, states: impl Iterator<Item = S>, value: impl Fn(f32, f32, S) -> f32) {
        match self {
            Self::InPlace(param, gradient) => {
                let each = param.iter_mut().zip(*gradient).zip(states);
                each.for_each(|((param, gradient), state)| *param = value(*param, *gradient, state));
            }
            Self::InGradient(param, gradient) => {
                let each = param.iter().zip(gradient.iter_mut()).zip(states);
                each.for_each(|((param, gradient), state)| *gradient = value(*param, *gradient, state));
            }
            Self::Apart(param, gradient, memory) => {
                let each = param.iter().zip(*gradient).zip(memory.iter_mut()).zip(states);
                each.for_each(|(((param, gradient), to), state)| _ = to.write(value(*param, *gradient, state)));
            }
        }
    }
}

/// `g += weight_decay * p; v = momentum * v + g; p -= rate * (v, or g + momentum * v for Nesterov)`: `velocity` changes
/// in place; it starts as zeros, which gives the rule's first step.
pub fn sgd(mut parameter: Parameter<'_>, velocity: Option<&mut [f32]>, step: &Sgd, parallel_for: ParallelFor) {
    let (rate, decay, momentum) = (step.rate as f32, step.weight_decay as f32, step.momentum as f32);
    let pieces = parameter.pieces().into_iter();
    let Some(velocity) = velocity else {
        return on_pieces(pieces, parallel_for, |parameter| {
            parameter.update(repeat(()), |param, gradient, ()| param - rate * (gradient + decay * param));
        });
    };
    on_pieces(pieces.zip(velocity.chunks_mut(PIECE)), parallel_for, |(parameter, velocity)| {
        parameter.update(velocity.iter_mut(), |param, gradient, velocity| {
            let slope = gradient + decay * param;
            *velocity = momentum * *velocity + slope;
            param - rate * if step.nesterov { slope + momentum * *velocity } else { *velocity }
        });
    });
}

/// Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization": as [`sgd`], with moments that start as zeros.
pub fn adamw(mut parameter: Parameter<'_>, moments: [&mut [f32]; 2], step: &AdamW, parallel_for: ParallelFor) {
    let blend = step.betas.map(|beta| [beta as f32, (1.0 - beta) as f32]);
    let [correction1, correction2] = step.corrections();
    let (rate, correction, eps) = ((step.rate / correction1) as f32, correction2 as f32, step.eps as f32);
    let kept = (1.0 - step.rate * step.weight_decay) as f32;
    let [first, second] = moments.map(|moment| moment.chunks_mut(PIECE));
    let pieces = parameter.pieces().into_iter().zip(first.zip(second));
    on_pieces(pieces, parallel_for, |(parameter, (first, second))| {
        let moments = first.iter_mut().zip(second.iter_mut());
        parameter.update(moments, |param, gradient, (first, second)| {
            *first = *first * blend[0][0] + gradient * blend[0][1];
            *second = *second * blend[1][0] + gradient * gradient * blend[1][1];
            param * kept - *first / ((*second / correction).sqrt() + eps) * rate
        });
    });
}

/// You, Gitman, Ginsburg 2017, "Large Batch Training of Convolutional Networks": as [`sgd`].
pub fn lars(mut parameter: Parameter<'_>, velocity: &mut [f32], step: &Lars, parallel_for: ParallelFor) {
    let (trust, decay) = match step.vector {
        true => (1.0, 0.0),
        false => {
            let norms = parameter.values().map(|values| norm(values, parallel_for) as f32);
            (step.trust(norms), step.weight_decay as f32)
        }
    };
    let (rate, momentum) = (step.rate as f32, step.momentum as f32);
    let pieces = parameter.pieces().into_iter().zip(velocity.chunks_mut(PIECE));
    on_pieces(pieces, parallel_for, |(parameter, velocity)| {
        parameter.update(velocity.iter_mut(), |param, gradient, velocity| {
            *velocity = *velocity * momentum + (gradient + param * decay) * trust * rate;
            param - *velocity
        });
    });
}

/// `left += right`.
pub fn add<T: Activation>(left: &mut [T], right: &[T], parallel_for: ParallelFor) {
    combine(left, right, parallel_for, |left, right| left + right);
}

/// `left = left * shares[0] + right * shares[1]`.
pub fn blend(left: &mut [f32], right: &[f32], shares: [f64; 2], parallel_for: ParallelFor) {
    let [kept, new] = shares.map(|share| share as f32);
    combine(left, right, parallel_for, |left, right| left * kept + right * new);
}

fn combine<T: Activation>(
    left: &mut [T],
    right: &[T],
    parallel_for: ParallelFor,
    value: impl Fn(f32, f32) -> f32 + Sync,
) {
    let combine = |(left, right): (&mut [T], &[T])| {
        left.iter_mut().zip(right).for_each(|(left, right)| *left = T::of(value(left.widened(), right.widened())));
    };
    on_pieces(left.chunks_mut(PIECE).zip(right.chunks(PIECE)), parallel_for, |(left, right)| {
        vectorized(combine, (&mut **left, *right));
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
