//! The valid range of each numeric key.
//!
//! One table, so that the errors for a wrong type and for a wrong number state the same rule. Rules about several keys
//! are in [`super::rules`].

use std::fmt;

/// An interval of finite numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Range {
    AtLeast(f64),
    Above(f64),
    /// At least 0 and below 1, as for momentum and decay rates.
    Fraction,
    /// From the first to the second, both included.
    Within(f64, f64),
    /// Above 0 and at most this number.
    UpTo(f64),
    /// From the first to the second, both excluded.
    Between(f64, f64),
    OneOf(&'static [f64]),
}

impl Range {
    /// Whether `value` is finite and in the range.
    pub(crate) fn contains(self, value: f64) -> bool {
        let inside = match self {
            Self::AtLeast(least) => value >= least,
            Self::Above(bound) => value > bound,
            Self::Fraction => (0.0..1.0).contains(&value),
            Self::Within(least, most) => (least..=most).contains(&value),
            Self::UpTo(most) => value > 0.0 && value <= most,
            Self::Between(low, high) => value > low && value < high,
            Self::OneOf(numbers) => numbers.contains(&value),
        };
        inside && value.is_finite()
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::Above(bound) => write!(f, "above {bound} and finite"),
            Self::Fraction => f.write_str("at least 0 and below 1"),
            Self::Within(least, most) => write!(f, "at least {least} and at most {most}"),
            Self::UpTo(most) => write!(f, "above 0 and at most {most}"),
            Self::Between(low, high) => write!(f, "above {low} and below {high}"),
            Self::OneOf(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(f64::to_string).collect();
                write!(f, "one of {}", numbers.join(", "))
            }
        }
    }
}

/// Larger numbers are taken for typing errors; below it, no product of two settings overflows.
const MILLION: f64 = 1e6;

/// The ranges of keys; whole numbers that are not listed are at least 0 by their type.
pub(crate) const RANGES: &[(&str, Range)] = &[
    ("run.epochs", Range::Within(1.0, MILLION)),
    ("run.stop_after", Range::Within(0.0, MILLION)),
    ("run.accumulation_steps", Range::Within(1.0, MILLION)),
    ("run.limit_train_batches", Range::Within(0.0, MILLION)),
    ("run.early_stopping", Range::Within(0.0, MILLION)),
    ("run.limit_val_batches", Range::Within(0.0, MILLION)),
    ("parallel.elastic_timeout", Range::UpTo(MILLION)),
    ("parallel.heartbeat", Range::UpTo(3600.0)),
    ("parallel.lost_after", Range::UpTo(MILLION)),
    ("run.threads", Range::Within(0.0, 1024.0)),
    ("data.crop_padding", Range::Within(0.0, 4096.0)),
    ("data.resized_crop", Range::Within(0.0, 1.0)),
    ("data.center_crop", Range::Within(0.0, 1.0)),
    ("data.cutout", Range::Within(0.0, 4096.0)),
    ("data.rand_augment_ops", Range::Within(0.0, 14.0)),
    ("data.rand_augment_magnitude", Range::Within(0.0, 30.0)),
    ("data.color_jitter", Range::Within(0.0, 1.0)),
    ("data.hue_jitter", Range::Within(0.0, 0.5)),
    ("data.random_erasing", Range::Within(0.0, 1.0)),
    ("data.erasing_count", Range::Within(1.0, 100.0)),
    ("data.mixup", Range::Within(0.0, 100.0)),
    ("data.cutmix", Range::Within(0.0, 100.0)),
    ("data.mix_prob", Range::Within(0.0, 1.0)),
    ("data.repeated_augmentation", Range::Within(1.0, 1000.0)),
    ("data.views", Range::Within(1.0, 100.0)),
    ("data.cache_mb", Range::Within(0.0, 1e9)),
    ("data.window", Range::Within(1.0, MILLION)),
    ("data.cache_dir_mb", Range::Within(1.0, 1e9)),
    ("data.prefetch_mb", Range::Within(1.0, MILLION)),
    ("data.retry_seconds", Range::UpTo(86400.0)),
    ("data.image_size", Range::Within(1.0, 1024.0)),
    ("data.val_image_size", Range::Within(0.0, 1024.0)),
    ("data.train_size", Range::Within(1.0, MILLION)),
    ("data.val_size", Range::Within(1.0, MILLION)),
    ("model.depth", Range::OneOf(&[18.0, 34.0, 50.0, 101.0, 152.0])),
    ("model.width", Range::Within(1.0, 4096.0)),
    ("model.groups", Range::Within(1.0, 1024.0)),
    ("model.width_per_group", Range::Within(1.0, 1024.0)),
    ("model.bn_parts", Range::Within(1.0, 100.0)),
    ("model.drop_path", Range::Fraction),
    ("model.num_classes", Range::Within(0.0, MILLION)),
    // Each replica is a thread of this process.
    ("parallel.world_size", Range::Within(1.0, 1024.0)),
    ("parallel.stages", Range::Within(0.0, 1024.0)),
    ("parallel.link", Range::Within(0.0, 1e9)),
    ("parallel.batch_size", Range::Within(1.0, MILLION)),
    ("parallel.timeout", Range::UpTo(MILLION)),
    ("optim.learning_rate", Range::Above(0.0)),
    ("optim.momentum", Range::Fraction),
    ("optim.weight_decay", Range::AtLeast(0.0)),
    ("optim.beta1", Range::Fraction),
    ("optim.beta2", Range::Fraction),
    ("optim.alpha", Range::Fraction),
    ("optim.eps", Range::Above(0.0)),
    ("optim.trust_coefficient", Range::Above(0.0)),
    ("optim.bce_threshold", Range::Fraction),
    ("optim.label_smoothing", Range::Fraction),
    ("optim.clip_grad_norm", Range::AtLeast(0.0)),
    ("optim.clip_grad_value", Range::AtLeast(0.0)),
    ("optim.backbone_lr_scale", Range::Above(0.0)),
    ("optim.norm_weight_decay", Range::AtLeast(-1.0)),
    ("optim.bias_weight_decay", Range::AtLeast(-1.0)),
    ("optim.ema_decay", Range::Fraction),
    ("optim.ema_every", Range::AtLeast(1.0)),
    ("schedule.warmup_epochs", Range::AtLeast(0.0)),
    ("schedule.warmup_start", Range::Within(0.0, 1.0)),
    ("schedule.warmup_lr", Range::AtLeast(0.0)),
    ("schedule.step_epochs", Range::AtLeast(1.0)),
    ("schedule.gamma", Range::UpTo(100.0)),
    ("schedule.restart_epochs", Range::Within(1.0, MILLION)),
    ("schedule.restart_factor", Range::Within(1.0, 1000.0)),
    ("schedule.onecycle_rise", Range::Between(0.0, 1.0)),
    ("schedule.final_lr", Range::AtLeast(0.0)),
    ("checkpoint.keep_last", Range::AtLeast(1.0)),
    ("checkpoint.keep_best", Range::AtLeast(1.0)),
];

/// The range of `key`, if it is listed.
pub(crate) fn of(key: &str) -> Option<Range> {
    RANGES.iter().find(|(name, _)| *name == key).map(|(_, range)| *range)
}
