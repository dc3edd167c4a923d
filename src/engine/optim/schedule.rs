//! The learning rate as a pure function of the global step and, for `plateau`, of how often it was reduced.
//!
//! Linear scaling and gradual warm-up as in Goyal et al. 2017, "Accurate, Large Minibatch SGD": the peak is the rate of
//! one replica times the number of replicas; the warm-up rises linearly to it from the unscaled rate or from a share of
//! the peak.
//!
//! Restarts follow Loshchilov and Hutter 2017, as `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`; one cycle
//! follows Smith and Topin 2018, as `OneCycleLR` with cosines and its default divisors.

use std::f64::consts::PI;

use super::config::{CountedFrom, ScheduleConfig, ScheduleInterval, ScheduleKind, WarmupShape};

/// A complete schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The shape after the warm-up, and its parameters.
    pub config: ScheduleConfig,
    /// Learning rate at the start of the warm-up.
    pub base: f64,
    /// Learning rate at its end.
    pub peak: f64,
    pub warmup_steps: usize,
    pub steps_per_epoch: usize,
    pub total_steps: usize,
}

impl Schedule {
    /// The schedule of a run of `epochs` epochs of `steps_per_epoch` steps with `world_size` replicas; `base` is the
    /// rate of one replica.
    pub fn new(
        config: &ScheduleConfig,
        base: f64,
        world_size: usize,
        accumulation_steps: usize,
        [epochs, steps_per_epoch]: [usize; 2],
    ) -> Self {
        let peak = base * config.growth(world_size, accumulation_steps);
        let base = match (config.warmup_lr, config.warmup_start) {
            (0.0, 0.0) => base,
            (0.0, share) => peak * share,
            (rate, _) => rate,
        };
        let warmup_steps = match config.kind {
            // The cycle starts with its own rise.
            ScheduleKind::OneCycle => 0,
            _ => (config.warmup_epochs * steps_per_epoch as f64).round() as usize,
        };
        let config = config.clone();
        Self { config, base, peak, warmup_steps, steps_per_epoch, total_steps: epochs * steps_per_epoch }
    }

    /// A constant rate for `total_steps` steps.
    pub fn constant(rate: f64, total_steps: usize) -> Self {
        let config = ScheduleConfig { kind: ScheduleKind::Constant, warmup_epochs: 0.0, ..ScheduleConfig::default() };
        Self::new(&config, rate, 1, 1, [total_steps, 1])
    }

    /// The rate of the 0-based step `step` after some `reductions` by the plateau schedule.
    pub fn reduced(&self, step: usize, reductions: usize) -> f64 {
        /// PyTorch's `eps`: smaller reductions are left out.
        const LEAST: f64 = 1e-8;
        let mut rate = self.at(step);
        for _ in 0..reductions {
            let lower = (rate * self.config.gamma).max(self.config.final_lr);
            // Nor does any later one change it.
            if rate - lower <= LEAST {
                break;
            }
            rate = lower;
        }
        rate
    }

    /// The rate of the 0-based step `step`, without reductions.
    pub fn at(&self, step: usize) -> f64 {
        let (config, peak, last) = (&self.config, self.peak, self.config.final_lr);
        let step = step - step % self.interval();
        if step < self.warmup_steps {
            let risen = if config.warmup_shape == WarmupShape::Linear { step } else { 0 };
            return self.base + (peak - self.base) * risen as f64 / self.warmup_steps as f64;
        }
        let before = if self.counts_warmup() { 0 } else { self.warmup_steps };
        let (step, length) = (step - before, self.total_steps.saturating_sub(before).max(1));
        let progress = (step as f64 / length as f64).min(1.0);
        match config.kind {
            ScheduleKind::Constant | ScheduleKind::Plateau => peak,
            ScheduleKind::Exponential => peak * (last / peak).powf(progress),
            ScheduleKind::Linear => peak + (last - peak) * progress,
            ScheduleKind::Poly => last + (peak - last) * (1.0 - progress).powf(config.gamma),
            ScheduleKind::Cosine => cosine(peak, last, progress),
            ScheduleKind::Restarts => cosine(peak, last, self.in_period(step)),
            ScheduleKind::OneCycle => self.one_cycle(step),
            ScheduleKind::Step => peak * config.gamma.powi(self.decays(step) as i32),
        }
    }

    /// Whether the shape counts the steps of the warm-up, which then replaces its beginning.
    pub fn counts_warmup(&self) -> bool {
        match self.config.counted_from {
            CountedFrom::Auto => self.config.kind == ScheduleKind::Step,
            from => from == CountedFrom::Start,
        }
    }

    /// Steps between two changes of the rate.
    pub fn interval(&self) -> usize {
        if self.config.interval == ScheduleInterval::Epoch { self.steps_of(1) } else { 1 }
    }

    /// Steps of so many epochs, at least 1.
    pub fn steps_of(&self, epochs: usize) -> usize {
        (epochs * self.steps_per_epoch).max(1)
    }

    /// For `step`: the steps at which the rate decays.
    pub fn milestones(&self) -> impl Iterator<Item = usize> {
        self.config.milestones.iter().map(|epoch| epoch * self.steps_per_epoch)
    }

    /// How often the rate has decayed at step `step` of the shape.
    fn decays(&self, step: usize) -> usize {
        match self.config.milestones.len() {
            0 => step / self.steps_of(self.config.step_epochs),
            _ => self.milestones().filter(|milestone| *milestone <= step).count(),
        }
    }

    /// Progress within its period, 0 to 1, of step `step` of the shape.
    fn in_period(&self, step: usize) -> f64 {
        let (mut start, mut length) = (0, self.steps_of(self.config.restart_epochs));
        while step - start >= length {
            start += length;
            length = length.saturating_mul(self.config.restart_factor.max(1));
        }
        (step - start) as f64 / length as f64
    }

    /// Up from 1/25 of the peak, then down to 1/10000 of the initial rate.
    fn one_cycle(&self, step: usize) -> f64 {
        let initial = self.peak / 25.0;
        let (top, end) = (self.config.onecycle_rise * self.total_steps as f64 - 1.0, self.total_steps as f64 - 1.0);
        let step = (step as f64).min(end);
        // A rise of a single step starts at the peak.
        if step <= top && top > 0.0 {
            cosine(initial, self.peak, step / top)
        } else {
            cosine(self.peak, initial / 1e4, (step - top) / (end - top))
        }
    }
}

/// Half a cosine from one value to another; `progress` goes from 0 to 1.
fn cosine(from: f64, to: f64, progress: f64) -> f64 {
    to + (from - to) * 0.5 * (1.0 + (PI * progress).cos())
}
