//! The SGD update in one pass over memory, and the norm for clipping.
//!
//! Composed of Burn's operations, SGD with momentum reads and writes a tensor some twenty times; the weights of
//! ResNet-18 are 45 MB, so with small images that is a good part of a step. CPU backends share the loops of
//! `host_update.rs`. `Autodiff` does not implement it: updates are not on the graph.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, Slice, TensorMetadata};

use super::host::HostOps;

/// The constants of one step of `torch.optim.SGD` with dampening 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub rate: f64,
    /// Momentum; 0 keeps no velocity.
    pub momentum: f64,
    /// Coupled weight decay.
    pub weight_decay: f64,
    /// Nesterov's look-ahead.
    pub nesterov: bool,
}

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

    /// The Euclidean norm, `[1]`.
    fn norm(x: FloatTensor<Self>) -> FloatTensor<Self> {
        // In rows: of one of 2^18 values or more CubeCL 0.10 adds up the first 2^18 only, on Mesa's Vulkan driver.
        const ROW: usize = 1 << 14;
        let (length, squares) = (x.shape().num_elements(), Self::float_mul(x.clone(), x));
        let whole = length - length % ROW;
        let part = |from: usize, to: usize| Self::float_slice(squares.clone(), &[Slice::from(from..to)]);
        let rest = (whole < length).then(|| Self::float_sum(part(whole, length)));
        let rows = (whole > 0).then(|| {
            let rows = Self::float_reshape(part(0, whole), Shape::new([whole / ROW, ROW]));
            Self::float_sum(Self::float_sum_dim(rows, 1))
        });
        let total = rows.into_iter().chain(rest).reduce(Self::float_add).unwrap_or_else(|| Self::float_sum(squares));
        Self::float_reshape(Self::float_sqrt(total), Shape::new([1]))
    }
}
