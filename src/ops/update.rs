//! The updates of SGD and AdamW in one pass over memory, and the norm for clipping.
//!
//! Composed of Burn's operations, SGD with momentum reads and writes a tensor some twenty times; the weights of
//! ResNet-18 are 45 MB, so with small images that is a good part of a step. CPU backends share the loops of
//! [`kiln_kernels::update`]. `Autodiff` does not implement it: updates are not on the graph.

use burn::tensor::ops::FloatTensor;
pub use kiln_kernels::update::{AdamW, Sgd};

use super::host::HostOps;
use super::{primitive, tensor};

/// Operations of optimizers on a parameter and its gradient, both `[elements]` and f32.
pub trait UpdateOps: HostOps {
    /// The new parameter and velocity; `velocity` is `None` before the first step and without momentum.
    ///
    /// `g += weight_decay * p; v = momentum * v + g (first: g); p -= rate * (v, or g + momentum * v for Nesterov)`.
    fn sgd(
        param: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        velocity: Option<FloatTensor<Self>>,
        step: &Sgd,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>) {
        let times = |tensor: FloatTensor<Self>, factor: f64| Self::float_mul_scalar(tensor, factor.into());
        let gradient = Self::float_add(gradient, times(param.clone(), step.weight_decay));
        let move_by = |direction| Self::float_sub(param, times(direction, step.rate));
        if step.momentum == 0.0 {
            return (move_by(gradient), None);
        }
        let velocity = match velocity {
            Some(velocity) => Self::float_add(times(velocity, step.momentum), gradient.clone()),
            None => gradient.clone(),
        };
        let ahead = |velocity| Self::float_add(gradient, times(velocity, step.momentum));
        let direction = if step.nesterov { ahead(velocity.clone()) } else { velocity.clone() };
        (move_by(direction), Some(velocity))
    }

    /// The new parameter and moments; `moments` is `None` before the first step.
    ///
    /// `m = b1 * m + (1 - b1) * g; v = b2 * v + (1 - b2) * g^2; p = p * (1 - rate * weight_decay) - rate / c1 * m /
    /// (sqrt(v / c2) + eps)` with `c = 1 - b^step`.
    fn adamw(
        param: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        moments: Option<[FloatTensor<Self>; 2]>,
        step: &AdamW,
    ) -> (FloatTensor<Self>, [FloatTensor<Self>; 2]) {
        let ([beta1, beta2], [correction1, correction2]) = (step.betas, step.corrections());
        let (param, gradient) = (tensor::<Self, 1>(param), tensor::<Self, 1>(gradient));
        let square = gradient.clone() * gradient.clone();
        let (first, second) = match moments.map(|moments| moments.map(tensor::<Self, 1>)) {
            Some([first, second]) => {
                (first * beta1 + gradient * (1.0 - beta1), second * beta2 + square * (1.0 - beta2))
            }
            None => (gradient * (1.0 - beta1), square * (1.0 - beta2)),
        };
        let scale = (second.clone() / correction2).sqrt() + step.eps;
        let change = first.clone() / scale * (step.rate / correction1);
        (primitive(param * (1.0 - step.rate * step.weight_decay) - change), [first, second].map(primitive))
    }

    /// The Euclidean norm, `[1]`, added up in the same order on every device of a kind.
    fn norm(x: FloatTensor<Self>) -> FloatTensor<Self>;
}
