//! The update of a tensor by its gradient in one pass over memory, and the norm that clipping asks for.
//!
//! Composed from Burn's operations, SGD with momentum reads and writes a tensor some twenty times; the weights of
//! ResNet-18 are 45 MB, so on small images that is a good part of a step. CPU backends share the loop at the end of this
//! file. Off the graph: `Autodiff` has no part in it.

use burn::tensor::Shape;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use rayon::prelude::*;

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

/// What an optimizer does with a parameter and its gradient, both `[elements]` and f32.
pub trait UpdateOps: Backend {
    /// The new parameter and velocity; `velocity` is `None` before the first step, and stays so without momentum.
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
        let total = Self::float_sum(Self::float_mul(x.clone(), x));
        Self::float_reshape(Self::float_sqrt(total), Shape::new([1]))
    }
}

/// Values that one task handles.
const PIECE: usize = 1 << 14;

/// [`UpdateOps::sgd`] in the host's memory: `gradient` becomes the new parameter, `velocity` changes in place and starts
/// as zeros, which gives what the rule says of the first step.
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
            let direction = if step.nesterov { slope + momentum * *velocity } else { *velocity };
            *gradient = param - rate * direction;
        }
    });
}

/// [`UpdateOps::norm`] in the host's memory, summed in f64 and in an order that no thread changes.
pub(super) fn norm_on_host(values: &[f32]) -> f64 {
    let square = |piece: &[f32]| piece.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>();
    let squares: Vec<f64> = values.par_chunks(PIECE).map(square).collect();
    squares.iter().sum::<f64>().sqrt()
}
