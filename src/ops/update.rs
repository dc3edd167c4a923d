//! The updates of SGD and AdamW in one pass over memory, and the norm for clipping.
//!
//! Composed of Burn's operations, SGD with momentum reads and writes a tensor some twenty times; the weights of
//! ResNet-18 are 45 MB, so with small images that is a good part of a step. CPU backends share the loops of
//! [`kiln_kernels::update`]. `Autodiff` does not implement it: updates are not on the graph.

use burn::tensor::Tensor;
use burn::tensor::ops::{FloatTensor, IntTensor};
pub use kiln_kernels::update::{AdamW, Lars, Sgd};

use super::host::HostOps;
use super::{primitive, tensor};

/// Operations of optimizers on a parameter and its gradient, both `[elements]` and f32.
pub trait UpdateOps: HostOps {
    /// Whether [`UpdateOps::sgd`], [`UpdateOps::adamw`] and
    /// [`BatchNormOps::bn_running`](crate::BatchNormOps::bn_running) write to the memory of what they update, whoever
    /// else holds it.
    const IN_PLACE: bool = false;

    /// The tensor in memory that nobody else holds, for what is updated in place, or shall not be.
    fn own(x: FloatTensor<Self>) -> FloatTensor<Self> {
        x
    }

    /// `x` in the memory of `place`, of the same shape, if updates are in place.
    fn put(x: FloatTensor<Self>, _place: FloatTensor<Self>) -> FloatTensor<Self> {
        x
    }

    /// As [`UpdateOps::put`], of integers.
    fn put_integers(x: IntTensor<Self>, _place: IntTensor<Self>) -> IntTensor<Self> {
        x
    }

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

    /// As [`UpdateOps::sgd`], at a `rate`, `[1]`, on the device instead of that of `step`. By default the host waits for
    /// it.
    fn sgd_there(
        param: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        velocity: Option<FloatTensor<Self>>,
        step: &Sgd,
        rate: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>) {
        Self::sgd(param, gradient, velocity, &Sgd { rate: number::<Self>(rate), ..*step })
    }

    /// As [`UpdateOps::adamw`], with the rate and the number of the step, `[1]`, on the device, as in
    /// [`UpdateOps::sgd_there`].
    fn adamw_there(
        param: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        moments: Option<[FloatTensor<Self>; 2]>,
        step: &AdamW,
        there: [FloatTensor<Self>; 2],
    ) -> (FloatTensor<Self>, [FloatTensor<Self>; 2]) {
        let [rate, number] = there.map(number::<Self>);
        Self::adamw(param, gradient, moments, &AdamW { rate, step: number as usize, ..*step })
    }

    /// The new parameter and velocity, as [`UpdateOps::sgd`].
    ///
    /// You, Gitman, Ginsburg 2017, eq. 6.
    fn lars(
        param: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        velocity: Option<FloatTensor<Self>>,
        step: &Lars,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let norm = |values: &Tensor<Self, 1>| tensor::<Self, 1>(Self::norm(primitive(values.clone())));
        let (param, gradient) = (tensor::<Self, 1>(param), tensor::<Self, 1>(gradient));
        let change = if step.vector {
            gradient * step.rate
        } else {
            let (weight, slope) = (norm(&param), norm(&gradient));
            let scale = slope + weight.clone() * step.weight_decay + 1e-12;
            let trust = weight.clone() * step.trust_coefficient / scale;
            // As in timm's LARS; with the formula alone, weights of zero would stay zero.
            let trust = trust.mask_fill(weight.equal_elem(0.0), 1.0);
            (gradient + param.clone() * step.weight_decay) * trust * step.rate
        };
        let velocity = match velocity {
            Some(velocity) => tensor(velocity) * step.momentum + change,
            None => change,
        };
        (primitive(param - velocity.clone()), primitive(velocity))
    }

    /// `left + right`, of one shape.
    fn added(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_add(left, right)
    }

    /// `left * shares[0] + right * shares[1]`.
    fn blend(left: FloatTensor<Self>, right: FloatTensor<Self>, shares: [f64; 2]) -> FloatTensor<Self> {
        let [left, right] = [(left, shares[0]), (right, shares[1])].map(|(x, share)| Self::scaled(x, share));
        Self::float_add(left, right)
    }

    /// The running mean of squares, `moment * alpha + gradient^2 * (1 - alpha)`, and the gradient over its root, to
    /// which `eps` is added. Without a `moment` that is zero.
    fn by_rms(
        gradient: FloatTensor<Self>,
        moment: Option<FloatTensor<Self>>,
        [alpha, eps]: [f64; 2],
    ) -> [FloatTensor<Self>; 2] {
        let gradient = tensor::<Self, 1>(gradient);
        let square = gradient.clone() * gradient.clone() * (1.0 - alpha);
        let moment = match moment {
            Some(moment) => tensor(moment) * alpha + square,
            None => square,
        };
        [gradient / (moment.clone().sqrt() + eps), moment].map(primitive)
    }

    /// `x * factor`.
    fn scaled(x: FloatTensor<Self>, factor: f64) -> FloatTensor<Self> {
        Self::float_mul_scalar(x, factor.into())
    }

    /// Values beyond `limit`, of both signs, become `limit`.
    fn clamped(x: FloatTensor<Self>, limit: f64) -> FloatTensor<Self> {
        Self::float_clamp(x, (-limit).into(), limit.into())
    }

    /// The Euclidean norm, `[1]`, added up in the same order on every device of a kind.
    fn norm(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// The number in `x`, `[1]`.
pub(crate) fn number<B: HostOps>(x: FloatTensor<B>) -> f64 {
    let mut values = Vec::with_capacity(1);
    B::append_to(x, &mut values);
    values[0].into()
}
