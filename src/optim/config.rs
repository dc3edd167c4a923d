//! The `[optim]` and `[schedule]` sections of the configuration, documented for users in `config/default.toml` and
//! checked by the config room.

use serde::{Deserialize, Serialize};

/// The update rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum, as PyTorch defines it.
    Sgd,
    /// Adam with decoupled weight decay (Loshchilov & Hutter, 2019).
    AdamW,
    /// Layer-wise adaptive rate scaling for very large batches (You et al., 2017).
    Lars,
}

/// The `[optim]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimConfig {
    /// The update rule.
    pub optimizer: OptimizerKind,
    /// Learning rate for the batch of one replica; `schedule.lr_scaling` scales it with the world size.
    pub learning_rate: f64,
    /// Momentum of SGD and LARS, in `[0, 1)`.
    pub momentum: f64,
    /// Nesterov's look-ahead; SGD only.
    pub nesterov: bool,
    /// Weight decay, at least 0: added to the gradient (SGD, LARS) or decoupled (AdamW).
    pub weight_decay: f64,
    /// AdamW's decay of the first moment, in `[0, 1)`.
    pub beta1: f64,
    /// AdamW's decay of the second moment, in `[0, 1)`.
    pub beta2: f64,
    /// Added to AdamW's denominator, above 0.
    pub eps: f64,
    /// LARS's trust coefficient, the ratio of a layer's step to the norm of its weights, above 0.
    pub trust_coefficient: f64,
    /// Probability mass spread evenly over all classes, in `[0, 1)`.
    pub label_smoothing: f64,
    /// Factor on the learning rate of all layers but the classifier, above 0.
    pub backbone_lr_scale: f64,
    /// Whether weight decay applies to one-dimensional tensors: batch-norm's parameters and biases.
    pub decay_norm_bias: bool,
    /// Largest L2 norm of the whole gradient; 0 clips nothing.
    pub clip_grad_norm: f64,
    /// Largest absolute value of an element of the gradient; 0 clips nothing.
    pub clip_grad_value: f64,
    /// Decay per step of the exponential moving average of the weights, in `[0, 1)`; 0 keeps no average.
    pub ema_decay: f64,
}

impl Default for OptimConfig {
    fn default() -> Self {
        Self {
            optimizer: OptimizerKind::Sgd,
            learning_rate: 0.025,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 5e-4,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            trust_coefficient: 0.001,
            label_smoothing: 0.0,
            backbone_lr_scale: 1.0,
            decay_norm_bias: true,
            clip_grad_norm: 0.0,
            clip_grad_value: 0.0,
            ema_decay: 0.0,
        }
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
    /// The peak until the end.
    Constant,
}

/// The shape of the warm-up.
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
    /// With every step.
    Step,
    /// With every epoch, as in torchvision and timm.
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
    /// Not at all.
    None,
}

/// The `[schedule]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// The shape after the warm-up.
    pub kind: ScheduleKind,
    /// Epochs of linear warm-up, at least 0 and at most all of them; fractions count.
    pub warmup_epochs: f64,
    /// Share of the peak at which the warm-up starts, in `[0, 1]`; 0 means the rate of one replica.
    pub warmup_start: f64,
    /// The shape of the warm-up.
    pub warmup_shape: WarmupShape,
    /// What the epochs of the shape after the warm-up are counted from.
    pub counted_from: CountedFrom,
    /// How often the rate changes.
    pub interval: ScheduleInterval,
    /// How the learning rate scales with the world size.
    pub lr_scaling: LrScaling,
    /// Whether `lr_scaling` counts the accumulated micro-batches too.
    pub scale_accumulation: bool,
    /// Epochs between two drops of `step`, at least 1.
    pub step_epochs: usize,
    /// Factor of a drop of `step`, in `(0, 1]`.
    pub gamma: f64,
    /// Epochs of the first period of `restarts`, at least 1.
    pub restart_epochs: usize,
    /// Ratio of the lengths of consecutive periods of `restarts`, at least 1.
    pub restart_factor: usize,
    /// Share of the run in which the rate of `onecycle` rises, in `(0, 1)`.
    pub onecycle_rise: f64,
    /// Learning rate at the very end of `cosine`, `linear`, `exponential` (there above 0) and each period of
    /// `restarts`.
    pub final_lr: f64,
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

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            kind: ScheduleKind::Cosine,
            warmup_epochs: 5.0,
            warmup_start: 0.0,
            warmup_shape: WarmupShape::Linear,
            counted_from: CountedFrom::Auto,
            interval: ScheduleInterval::Step,
            lr_scaling: LrScaling::Linear,
            scale_accumulation: false,
            step_epochs: 30,
            gamma: 0.1,
            restart_epochs: 10,
            restart_factor: 2,
            onecycle_rise: 0.3,
            final_lr: 0.0,
        }
    }
}
