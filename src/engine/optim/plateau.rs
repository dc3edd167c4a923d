//! What the plateau schedule remembers of validations: `torch.optim.lr_scheduler.ReduceLROnPlateau` with its threshold.

use serde::{Deserialize, Serialize};

use super::config::ScheduleKind;
use super::schedule::Schedule;
use crate::exact::Exact;

/// By which part of the best score another must exceed it to be better.
const THRESHOLD: f64 = 1e-4;

/// Follows from the scores of all validations after the warm-up; part of a run's position.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plateau {
    pub best: Option<Exact>,
    /// Validations in a row that were not better.
    pub bad: usize,
    /// Validations to come that do not count as bad.
    pub cooldown: usize,
    /// How often the rate was reduced.
    pub reductions: usize,
}

impl Plateau {
    pub(crate) fn is_new(&self) -> bool {
        *self == Self::default()
    }

    /// Counts the validation after `step` steps, of which a greater `score` is better. timm, too, begins after the
    /// warm-up.
    pub fn validated(&mut self, schedule: &Schedule, score: f64, step: usize) {
        if schedule.config.kind != ScheduleKind::Plateau || step <= schedule.warmup_steps {
            return;
        }
        // Losses are scores below zero.
        let limit = self.best.map_or(f64::NEG_INFINITY, |Exact(best)| best * (1.0 + THRESHOLD.copysign(best)));
        self.bad += 1;
        if score > limit {
            (self.best, self.bad) = (Some(Exact(score)), 0);
        }
        if self.cooldown > 0 {
            (self.cooldown, self.bad) = (self.cooldown - 1, 0);
        }
        if self.bad > schedule.config.patience_epochs {
            *self =
                Self { bad: 0, cooldown: schedule.config.cooldown_epochs, reductions: self.reductions + 1, ..*self };
        }
    }
}
