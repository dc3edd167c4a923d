//! The update rules: how one tensor and its gradient become the tensor after the step.
//!
//! - SGD with momentum, dampening 0, coupled weight decay, optional Nesterov: as `torch.optim.SGD`.
//! - AdamW: Loshchilov and Hutter 2019, decoupled weight decay, bias correction: as `torch.optim.AdamW`.
//! - LARS: You, Gitman, Ginsburg 2017, eq. 6; one-dimensional tensors (biases, batch-norm) take plain SGD without decay.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::config::{OptimConfig, OptimizerKind};

/// What a rule remembers of one tensor: momentum, or first and second moment. Empty before the first step.
pub(super) type Slots<B> = Vec<Tensor<B, 1>>;

/// One step of one tensor, all `[elements]`.
pub(super) struct Update<'a, B: Backend> {
    pub(super) config: &'a OptimConfig,
    pub(super) rate: f64,
    /// 1 for the first step.
    pub(super) step: usize,
    /// Whether the tensor is a vector: a bias or a parameter of batch-norm.
    pub(super) vector: bool,
    pub(super) param: Tensor<B, 1>,
    pub(super) gradient: Tensor<B, 1>,
}

impl<B: Backend> Update<'_, B> {
    /// The new tensor and what to remember.
    pub(super) fn apply(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        match self.config.optimizer {
            OptimizerKind::Sgd => self.sgd(slots),
            OptimizerKind::AdamW => self.adamw(slots),
            OptimizerKind::Lars => self.lars(slots),
        }
    }

    fn sgd(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let momentum = self.config.momentum;
        let gradient = self.gradient + self.param.clone() * self.config.weight_decay;
        if momentum == 0.0 {
            return (self.param - gradient * self.rate, slots);
        }
        let velocity = match slots.into_iter().next() {
            Some(velocity) => velocity * momentum + gradient.clone(),
            None => gradient.clone(),
        };
        let direction = if self.config.nesterov { gradient + velocity.clone() * momentum } else { velocity.clone() };
        (self.param - direction * self.rate, vec![velocity])
    }

    fn adamw(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let OptimConfig { beta1, beta2, eps, weight_decay, .. } = *self.config;
        let square = self.gradient.clone().powf_scalar(2.0);
        let mut slots = slots.into_iter();
        let blend = |old: Option<Tensor<B, 1>>, new: Tensor<B, 1>, beta: f64| match old {
            Some(old) => old * beta + new * (1.0 - beta),
            None => new * (1.0 - beta),
        };
        let first = blend(slots.next(), self.gradient, beta1);
        let second = blend(slots.next(), square, beta2);
        let correction = |beta: f64| 1.0 - beta.powi(self.step as i32);
        let scale = (second.clone() / correction(beta2)).sqrt() + eps;
        let decayed = self.param * (1.0 - self.rate * weight_decay);
        let step = first.clone() / scale * (self.rate / correction(beta1));
        (decayed - step, vec![first, second])
    }

    fn lars(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let OptimConfig { momentum, trust_coefficient, weight_decay, .. } = *self.config;
        let step = if self.vector {
            self.gradient * self.rate
        } else {
            let norm = |tensor: &Tensor<B, 1>| tensor.clone().powf_scalar(2.0).sum().sqrt();
            let (weight, slope) = (norm(&self.param), norm(&self.gradient));
            let trust = weight.clone() * trust_coefficient / (slope + weight * weight_decay + 1e-12);
            (self.gradient + self.param.clone() * weight_decay) * trust * self.rate
        };
        let velocity = match slots.into_iter().next() {
            Some(velocity) => velocity * momentum + step,
            None => step,
        };
        (self.param - velocity.clone(), vec![velocity])
    }
}
