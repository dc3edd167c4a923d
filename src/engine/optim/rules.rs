//! The update rules for one tensor.
//!
//! - SGD with momentum, dampening 0, coupled weight decay, optional Nesterov: as `torch.optim.SGD`.
//! - AdamW: Loshchilov and Hutter 2019, decoupled weight decay, bias correction: as `torch.optim.AdamW`.
//! - LARS: You, Gitman, Ginsburg 2017, eq. 6; one-dimensional tensors (biases, batch-norm) take plain SGD without
//!   decay.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use kiln_ops::{AdamW, Lars, Sgd, UpdateOps, primitive, tensor};

use super::config::{OptimConfig, OptimizerKind};

/// A rule's state of one tensor: momentum, or first and second moment. Empty before the first step.
pub(super) type Slots<B> = Vec<Tensor<B, 1>>;

/// One step of one tensor, all `[elements]`.
pub(super) struct Update<'a, B: Backend> {
    pub(super) config: &'a OptimConfig,
    pub(super) rate: f64,
    pub(super) weight_decay: f64,
    /// 1 for the first step.
    pub(super) step: usize,
    /// Whether the tensor is one-dimensional: a bias or a parameter of batch-norm.
    pub(super) vector: bool,
    pub(super) param: Tensor<B, 1>,
    pub(super) gradient: Tensor<B, 1>,
}

impl<B: UpdateOps> Update<'_, B> {
    pub(super) fn apply(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        match self.config.optimizer {
            OptimizerKind::Sgd => self.sgd(slots),
            OptimizerKind::AdamW => self.adamw(slots),
            OptimizerKind::Lars => self.lars(slots),
        }
    }

    fn sgd(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let OptimConfig { momentum, nesterov, .. } = *self.config;
        let step = Sgd { rate: self.rate, momentum, weight_decay: self.weight_decay, nesterov };
        let velocity = slots.into_iter().next().map(primitive);
        let (param, velocity) = B::sgd(primitive(self.param), primitive(self.gradient), velocity, &step);
        (tensor(param), velocity.into_iter().map(tensor).collect())
    }

    fn adamw(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let OptimConfig { beta1, beta2, eps, .. } = *self.config;
        let step =
            AdamW { rate: self.rate, betas: [beta1, beta2], eps, weight_decay: self.weight_decay, step: self.step };
        let moments = <[_; 2]>::try_from(slots).ok().map(|moments| moments.map(primitive));
        let (param, moments) = B::adamw(primitive(self.param), primitive(self.gradient), moments, &step);
        (tensor(param), moments.map(tensor).into())
    }

    fn lars(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let OptimConfig { momentum, trust_coefficient, .. } = *self.config;
        let (rate, weight_decay, vector) = (self.rate, self.weight_decay, self.vector);
        let step = Lars { rate, momentum, weight_decay, trust_coefficient, vector };
        let velocity = slots.into_iter().next().map(primitive);
        let (param, velocity) = B::lars(primitive(self.param), primitive(self.gradient), velocity, &step);
        (tensor(param), vec![tensor(velocity)])
    }
}
