//! The update rules for one tensor.
//!
//! - SGD with momentum, dampening 0, coupled weight decay, optional Nesterov: as `torch.optim.SGD`.
//! - Adam and AdamW: Kingma and Ba 2015, Loshchilov and Hutter 2019, coupled and decoupled weight decay, bias
//!   correction: as `torch.optim.Adam` and `AdamW`.
//! - NAdamW: Dozat 2016, AdamW that looks one gradient ahead: as timm's `NAdamW`, not `torch.optim.NAdam`, which also
//!   varies the momentum.
//! - RMSprop: Tieleman and Hinton 2012, not centred, coupled weight decay: as `torch.optim.RMSprop`.
//! - LARS: You, Gitman, Ginsburg 2017, eq. 6; one-dimensional tensors (biases, batch-norm) take plain SGD without
//!   decay.
//! - LAMB: You et al. 2020, algorithm 2: AdamW's direction, scaled for each tensor by the norm of its weights over that
//!   of the direction; tensors without weight decay are not scaled, as in timm.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use kiln_ops::{AdamW, Lars, Sgd, UpdateOps, download_each, primitive, tensor};

use super::config::{OptimConfig, OptimizerKind};

/// A rule's state of one tensor: momentum, first and second moment, or second moment and momentum. Empty before the
/// first step.
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
    /// The rate and the number of the step on the device, which are used instead.
    pub(super) there: Option<[Tensor<B, 1>; 2]>,
}

impl<B: UpdateOps> Update<'_, B> {
    pub(super) fn apply(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let betas = [self.config.beta1, self.config.beta2];
        match self.config.optimizer {
            OptimizerKind::Sgd => self.sgd(slots),
            OptimizerKind::Adam => self.coupled().adamw(slots, betas),
            OptimizerKind::AdamW => self.adamw(slots, betas),
            OptimizerKind::NAdamW => self.nadamw(slots, betas),
            OptimizerKind::RmsProp => self.coupled().rmsprop(slots),
            OptimizerKind::Lars => self.lars(slots),
            OptimizerKind::Lamb => self.lamb(slots, betas),
        }
    }

    fn sgd(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let OptimConfig { momentum, nesterov, .. } = *self.config;
        let step = Sgd { rate: self.rate, momentum, weight_decay: self.weight_decay, nesterov };
        let velocity = slots.into_iter().next().map(primitive);
        let (param, gradient) = (primitive(self.param), primitive(self.gradient));
        let (param, velocity) = match self.there {
            Some([rate, _]) => B::sgd_there(param, gradient, velocity, &step, primitive(rate)),
            None => B::sgd(param, gradient, velocity, &step),
        };
        (tensor(param), velocity.into_iter().map(tensor).collect())
    }

    /// With weight decay in the gradient.
    fn coupled(self) -> Self {
        if self.weight_decay == 0.0 {
            return self;
        }
        let gradient = blend(&self.gradient, &self.param, [1.0, self.weight_decay]);
        Self { gradient, weight_decay: 0.0, ..self }
    }

    fn adamw(self, slots: Slots<B>, betas: [f64; 2]) -> (Tensor<B, 1>, Slots<B>) {
        let Self { rate, weight_decay, step, config: &OptimConfig { eps, .. }, .. } = self;
        let step = AdamW { rate, betas, eps, weight_decay, step };
        let moments = <[_; 2]>::try_from(slots).ok().map(|moments| moments.map(primitive));
        let (param, gradient) = (primitive(self.param), primitive(self.gradient));
        let (param, moments) = match self.there {
            Some(there) => B::adamw_there(param, gradient, moments, &step, there.map(primitive)),
            None => B::adamw(param, gradient, moments, &step),
        };
        (tensor(param), moments.map(tensor).into())
    }

    /// The step is along `b1 * m + (1 - b1) * g`, with the new moment `m`: the moment that `b1^2` gives.
    fn nadamw(self, slots: Slots<B>, [beta1, beta2]: [f64; 2]) -> (Tensor<B, 1>, Slots<B>) {
        let moment = match slots.first() {
            Some(moment) => blend(moment, &self.gradient, [beta1, 1.0 - beta1]),
            None => self.gradient.clone() * (1.0 - beta1),
        };
        // AdamW divides by `1 - b1^2t`, which is this times `1 - b1^t`.
        let factor = 1.0 + beta1.powi(self.step as i32);
        let update = Self { rate: self.rate * factor, weight_decay: self.weight_decay / factor, ..self };
        let (param, mut slots) = update.adamw(slots, [beta1 * beta1, beta2]);
        slots[0] = put(moment, Some(slots[0].clone()));
        (param, slots)
    }

    fn rmsprop(self, mut slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let velocity = if slots.is_empty() { Vec::new() } else { slots.split_off(1) };
        let (moment, constants) = (slots.pop().map(primitive), [self.config.alpha, self.config.eps]);
        let [gradient, moment] = B::by_rms(primitive(self.gradient), moment, constants).map(tensor);
        let (param, velocity) = Self { gradient, ..self }.sgd(velocity);
        (param, [vec![moment], velocity].concat())
    }

    fn lars(self, slots: Slots<B>) -> (Tensor<B, 1>, Slots<B>) {
        let OptimConfig { momentum, trust_coefficient, .. } = *self.config;
        let (rate, weight_decay, vector) = (self.rate, self.weight_decay, self.vector);
        let step = Lars { rate, momentum, weight_decay, trust_coefficient, vector };
        let velocity = slots.into_iter().next().map(primitive);
        let (param, velocity) = B::lars(primitive(self.param), primitive(self.gradient), velocity, &step);
        (tensor(param), vec![tensor(velocity)])
    }

    fn lamb(self, slots: Slots<B>, betas: [f64; 2]) -> (Tensor<B, 1>, Slots<B>) {
        let (param, rate, weight_decay) = (self.param.clone(), self.rate, self.weight_decay);
        // At a rate of one, AdamW moves the parameter by the direction.
        let copy = tensor(B::own(primitive(self.param)));
        let (moved, slots) = Self { rate: 1.0, param: copy, ..self }.adamw(slots, betas);
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

/// `left * shares[0] + right * shares[1]`.
fn blend<B: UpdateOps>(left: &Tensor<B, 1>, right: &Tensor<B, 1>, shares: [f64; 2]) -> Tensor<B, 1> {
    tensor(B::blend(primitive(left.clone()), primitive(right.clone()), shares))
}

/// `x` in the memory of `place`, if there is one and updates are in place.
pub(super) fn put<B: UpdateOps>(x: Tensor<B, 1>, place: Option<Tensor<B, 1>>) -> Tensor<B, 1> {
    let Some(place) = place else { return x };
    tensor(B::put(primitive(x), primitive(place)))
}
