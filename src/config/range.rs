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

/// The ranges of keys, separated by spaces; whole numbers that are not listed are at least 0 by their type.
const RANGES: &[(&str, Range)] = &[
    ("run.epochs run.accumulation_steps", Range::Within(1.0, MILLION)),
    ("run.stop_after run.limit_train_batches run.early_stopping run.limit_val_batches", Range::Within(0.0, MILLION)),
    ("run.threads", Range::Within(0.0, 1024.0)),
    ("data.resized_crop data.center_crop data.color_jitter", Range::Within(0.0, 1.0)),
    ("data.random_erasing data.mix_prob", Range::Within(0.0, 1.0)),
    ("data.crop_padding data.cutout", Range::Within(0.0, 4096.0)),
    ("data.rand_augment_ops", Range::Within(0.0, 14.0)),
    ("data.rand_augment_magnitude", Range::Within(0.0, 30.0)),
    ("data.hue_jitter", Range::Within(0.0, 0.5)),
    ("data.erasing_count data.views", Range::Within(1.0, 100.0)),
    ("data.mixup data.cutmix", Range::Within(0.0, 100.0)),
    ("data.repeated_augmentation", Range::Within(1.0, 1000.0)),
    ("data.cache_mb", Range::Within(0.0, 1e9)),
    ("data.cache_dir_mb", Range::Within(1.0, 1e9)),
    ("data.window data.prefetch_mb data.train_size data.val_size", Range::Within(1.0, MILLION)),
    ("data.retry_seconds", Range::UpTo(86400.0)),
    ("data.image_size", Range::Within(1.0, 1024.0)),
    ("data.val_image_size", Range::Within(0.0, 1024.0)),
    ("model.depth", Range::OneOf(&[18.0, 34.0, 50.0, 101.0, 152.0])),
    ("model.width", Range::Within(1.0, 4096.0)),
    ("model.groups model.width_per_group", Range::Within(1.0, 1024.0)),
    ("model.bn_parts", Range::Within(1.0, 100.0)),
    ("model.drop_path", Range::Fraction),
    ("model.num_classes", Range::Within(0.0, MILLION)),
    // Each replica is a thread of this process.
    ("parallel.world_size", Range::Within(1.0, 1024.0)),
    ("parallel.stages", Range::Within(0.0, 1024.0)),
    ("parallel.link", Range::Within(0.0, 1e9)),
    ("parallel.batch_size", Range::Within(1.0, MILLION)),
    ("parallel.timeout parallel.elastic_timeout parallel.lost_after", Range::UpTo(MILLION)),
    ("parallel.heartbeat", Range::UpTo(3600.0)),
    ("optim.learning_rate optim.eps optim.trust_coefficient optim.backbone_lr_scale", Range::Above(0.0)),
    ("optim.momentum optim.beta1 optim.beta2 optim.alpha", Range::Fraction),
    ("optim.bce_threshold optim.label_smoothing optim.ema_decay", Range::Fraction),
    ("optim.weight_decay optim.clip_grad_norm optim.clip_grad_value", Range::AtLeast(0.0)),
    ("optim.norm_weight_decay optim.bias_weight_decay", Range::AtLeast(-1.0)),
    ("optim.ema_every", Range::AtLeast(1.0)),
    ("schedule.warmup_epochs schedule.warmup_lr schedule.final_lr", Range::AtLeast(0.0)),
    ("schedule.warmup_start", Range::Within(0.0, 1.0)),
    ("schedule.step_epochs", Range::AtLeast(1.0)),
    ("schedule.gamma", Range::UpTo(100.0)),
    ("schedule.restart_epochs", Range::Within(1.0, MILLION)),
    ("schedule.restart_factor", Range::Within(1.0, 1000.0)),
    ("schedule.onecycle_rise", Range::Between(0.0, 1.0)),
    ("checkpoint.keep_last checkpoint.keep_best", Range::AtLeast(1.0)),
];

/// Every key with a range.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, Range)> {
    RANGES.iter().flat_map(|(keys, range)| keys.split(' ').map(|key| (key, *range)))
}

/// The range of `key`, if it is listed.
pub(crate) fn of(key: &str) -> Option<Range> {
    all().find(|(name, _)| *name == key).map(|(_, range)| range)
}
