//! The learning rate as a pure function of the global step.
//!
//! Linear scaling and gradual warm-up as in Goyal et al. 2017, "Accurate, Large Minibatch SGD": the peak is the rate of
//! one replica times the number of replicas, and it is reached in even steps from the unscaled rate.

use std::f64::consts::PI;

use super::config::{LrScaling, ScheduleConfig, ScheduleKind};

/// A complete schedule; all lengths in optimizer steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Shape after the warm-up.
    pub kind: ScheduleKind,
    /// Where the warm-up starts.
    pub base: f64,
    /// Where it ends.
    pub peak: f64,
    /// Where cosine and linear end.
    pub last: f64,
    /// Steps of warm-up.
    pub warmup_steps: usize,
    /// Steps of the whole run.
    pub total_steps: usize,
    /// For `step`: steps between two decays.
    pub decay_steps: usize,
    /// For `step`: the factor of a decay.
    pub gamma: f64,
}

impl Schedule {
    /// The schedule of a run of `epochs` epochs of `steps_per_epoch` steps with `world_size` replicas, each with the
    /// rate `base` of its own.
    pub fn new(
        config: &ScheduleConfig,
        base: f64,
        world_size: usize,
        accumulation_steps: usize,
        [epochs, steps_per_epoch]: [usize; 2],
    ) -> Self {
        let growth = world_size * if config.scale_accumulation { accumulation_steps } else { 1 };
        let scale = match config.lr_scaling {
            LrScaling::Linear => growth as f64,
            LrScaling::Sqrt => (growth as f64).sqrt(),
            LrScaling::None => 1.0,
        };
        Self {
            kind: config.kind,
            base,
            peak: base * scale,
            last: config.final_lr,
            warmup_steps: (config.warmup_epochs * steps_per_epoch as f64).round() as usize,
            total_steps: epochs * steps_per_epoch,
            decay_steps: (config.step_epochs * steps_per_epoch).max(1),
            gamma: config.gamma,
        }
    }

    /// The rate of the 0-based step `step`.
    pub fn at(&self, step: usize) -> f64 {
        if step < self.warmup_steps {
            return self.base + (self.peak - self.base) * step as f64 / self.warmup_steps as f64;
        }
        let length = self.total_steps.saturating_sub(self.warmup_steps).max(1);
        let progress = ((step - self.warmup_steps) as f64 / length as f64).min(1.0);
        match self.kind {
            ScheduleKind::Constant => self.peak,
            ScheduleKind::Linear => self.peak + (self.last - self.peak) * progress,
            ScheduleKind::Cosine => self.last + (self.peak - self.last) * 0.5 * (1.0 + (PI * progress).cos()),
            ScheduleKind::Step => self.peak * self.gamma.powi((step / self.decay_steps) as i32),
        }
    }
}
