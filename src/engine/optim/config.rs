//! The `[optim]` and `[schedule]` sections of the configuration, documented for users in `config/default.toml` and
//! checked by the config room.

use kiln_system::with_defaults;
use serde::{Deserialize, Serialize};

use super::parameter::Parameter;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum, as PyTorch defines it.
    Sgd,
    /// Kingma & Ba, 2015; weight decay is part of the gradient, as in PyTorch.
    Adam,
    /// Adam with decoupled weight decay (Loshchilov & Hutter, 2019).
    AdamW,
    /// AdamW with Nesterov momentum (Dozat, 2016), as timm's `NAdamW`.
    NAdamW,
    /// Gradients relative to their running size (Tieleman & Hinton, 2012), with momentum, as PyTorch defines it.
    RmsProp,
    /// Layer-wise adaptive rate scaling for very large batches (You et al., 2017).
    Lars,
    /// AdamW with a step relative to the weights of each tensor, for large batches (You et al., 2020), as timm's
    /// `Lamb`.
    Lamb,
}

/// What is minimised in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    #[default]
    CrossEntropy,
    /// The mean over classes of the binary cross-entropy (Wightman, Touvron and Jegou, 2021).
    Bce,
    /// The cross-entropy of the first of several views of an image, and how far the others differ from it (Hendrycks et
    /// al., 2020).
    Jsd,
}

with_defaults! {
    /// The `[optim]` section.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct OptimConfig {
        pub optimizer: OptimizerKind = OptimizerKind::Sgd,
        pub learning_rate: f64 = 0.025,
        pub momentum: f64 = 0.9,
        pub nesterov: bool = false,
        pub weight_decay: f64 = 5e-4,
        pub beta1: f64 = 0.9,
        pub beta2: f64 = 0.999,
        pub alpha: f64 = 0.99,
        pub eps: f64 = 1e-8,
        pub trust_coefficient: f64 = 0.001,
        pub loss: LossKind = LossKind::CrossEntropy,
        /// Targets of [`LossKind::Bce`] above it become 1, all others 0; 0 keeps them.
        pub bce_threshold: f64 = 0.0,
        pub label_smoothing: f64 = 0.0,
        pub backbone_lr_scale: f64 = 1.0,
        pub decay_norm_bias: bool = true,
        /// Weight decay of batch-norm's parameters; below 0 that of all others.
        pub norm_weight_decay: f64 = -1.0,
        /// Weight decay of biases, those of batch-norm too; below 0 that of all others.
        pub bias_weight_decay: f64 = -1.0,
        pub clip_grad_norm: f64 = 0.0,
        pub clip_grad_value: f64 = 0.0,
        pub ema_decay: f64 = 0.0,
        pub ema_every: usize = 1,
        pub ema_after_warmup: bool = false,
    }
}

impl OptimConfig {
    /// The weight decay of `parameter`; the rules for biases and for batch-norm are those of torchvision's
    /// `set_weight_decay`.
    pub fn weight_decay_of(&self, parameter: &Parameter) -> f64 {
        let Parameter { vector, head, .. } = *parameter;
        let set = |applies: bool, decay: f64| (applies && decay >= 0.0).then_some(decay);
        let general = if vector && !self.decay_norm_bias { 0.0 } else { self.weight_decay };
        set(parameter.is_bias(), self.bias_weight_decay)
            .or_else(|| set(vector && !head, self.norm_weight_decay))
            .unwrap_or(general)
    }
}

/// The shape of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// Half a cosine from the peak to `final_lr` (Loshchilov & Hutter, 2017).
    Cosine,
    /// Cosine annealing with warm restarts of growing length (Loshchilov & Hutter, 2017).
    Restarts,
    /// Up and down once over the whole run (Smith & Topin, 2018).
    OneCycle,
    /// Multiplied by `gamma` every `step_epochs`.
    Step,
    /// A straight line from the peak to `final_lr`.
    Linear,
    /// From the peak to `final_lr` by the same factor in every step, as in a range test (Smith, 2017).
    Exponential,
    /// From the peak to `final_lr` by a power, `gamma`, of the part of the run that is left, as timm's
    /// `PolyLRScheduler`.
    Poly,
    /// The peak until the end.
    Constant,
    /// Multiplied by `gamma` when the validation has stopped improving, as PyTorch's `ReduceLROnPlateau`.
    Plateau,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmupShape {
    /// A straight line to the peak.
    Linear,
    /// The rate at its start until its end.
    Constant,
}

/// What the epochs of the shape after the warm-up are counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CountedFrom {
    /// The start of the run for `step`, the end of the warm-up for the other shapes.
    Auto,
    /// The start of the run, as in timm: the warm-up replaces the beginning of the shape.
    Start,
    /// The end of the warm-up, as in torchvision.
    Warmup,
}

/// How often the rate changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleInterval {
    Step,
    Epoch,
}

/// How the learning rate scales with the number of samples per step, relative to one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrScaling {
    /// Proportionally (Goyal et al., 2017).
    Linear,
    /// With the square root, usual for AdamW.
    Sqrt,
    None,
}

with_defaults! {
    /// The `[schedule]` section.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ScheduleConfig {
        pub kind: ScheduleKind = ScheduleKind::Cosine,
        pub warmup_epochs: f64 = 5.0,
        pub warmup_start: f64 = 0.0,
        pub warmup_lr: f64 = 0.0,
        pub warmup_shape: WarmupShape = WarmupShape::Linear,
        pub counted_from: CountedFrom = CountedFrom::Auto,
        pub interval: ScheduleInterval = ScheduleInterval::Step,
        pub lr_scaling: LrScaling = LrScaling::Linear,
        pub scale_accumulation: bool = false,
        pub step_epochs: usize = 30,
        pub milestones: Vec<usize> = Vec::new(),
        pub gamma: f64 = 0.1,
        pub patience_epochs: usize = 10,
        pub cooldown_epochs: usize = 0,
        pub restart_epochs: usize = 10,
        pub restart_factor: usize = 2,
        pub onecycle_rise: f64 = 0.3,
        pub final_lr: f64 = 0.0,
    }
}

impl ScheduleConfig {
    /// The ratio of the peak to the rate of one replica.
    pub fn growth(&self, world_size: usize, accumulation_steps: usize) -> f64 {
        let growth = world_size * if self.scale_accumulation { accumulation_steps } else { 1 };
        match self.lr_scaling {
            LrScaling::Linear => growth as f64,
            LrScaling::Sqrt => (growth as f64).sqrt(),
            LrScaling::None => 1.0,
        }
    }
}
