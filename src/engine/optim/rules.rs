//! The update rules for one tensor.
//!
//! - SGD with momentum, dampening 0, coupled weight decay, optional Nesterov: as `torch.optim.SGD`.
//! - AdamW: Loshchilov and Hutter 2019, decoupled weight decay, bias correction: as `torch.optim.AdamW`.
//! - LARS: You, Gitman, Ginsburg 2017, eq. 6; one-dimensional tensors (biases, batch-norm) take plain SGD without
//!   decay.
//! - LAMB: You et al. 2020, algorithm 2: AdamW's direction, scaled for each tensor by the norm of its weights over that
//!   of the direction; tensors without weight decay are not scaled, as in timm.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use kiln_ops::{AdamW, Lars, Sgd, UpdateOps, download_each, primitive, tensor};

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
            OptimizerKind::Lamb => self.lamb(slots),
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

    fn lamb(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let (param, rate, weight_decay) = (self.param.clone(), self.rate, self.weight_decay);
        // At a rate of one, AdamW moves the parameter by the direction.
        let (moved, slots) = Self { rate: 1.0, ..self }.adamw(slots);
        let blend = |left: &Tensor<B, 1>, right: &Tensor<B, 1>, shares| {
            tensor::<B, 1>(B::blend(primitive(left.clone()), primitive(right.clone()), shares))
        };
        let direction = blend(&param, &moved, [1.0, -1.0]);
        if weight_decay == 0.0 {
            return (blend(&param, &direction, [1.0, -rate]), slots);
        }
        let norm = |values: &Tensor<B, 1>| tensor::<B, 1>(B::norm(primitive(values.clone())));
        let (weight, length) = (norm(&param), norm(&direction));
        let is_zero = weight.clone().equal_elem(0.0).bool_or(length.clone().equal_elem(0.0));
        let trust = (weight / length).mask_fill(is_zero, 1.0);
        // Elsewhere the host would wait for the number.
        let param = if B::is_processor() {
            let trust = download_each(vec![trust]).concat()[0];
            blend(&param, &direction, [1.0, -rate * f64::from(trust)])
        } else {
            param - direction * (trust * rate)
        };
        (param, slots)
    }
}
