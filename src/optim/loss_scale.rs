//! Dynamic loss scaling for f16 (Micikevicius et al. 2018, section 3.2; the constants of `torch.amp.GradScaler`).
//!
//! Small gradients vanish in f16, so the loss is multiplied by a scale that the update divides out again. A step whose
//! gradient overflows is left out on all replicas, which all see the same reduced gradient, and the scale is halved.

use serde::{Deserialize, Serialize};

/// Good steps after which the scale doubles.
const INTERVAL: usize = 2000;
const GROWTH: f64 = 2.0;
const BACK_OFF: f64 = 0.5;

/// The scale and what led to it; part of a run's position.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// What the loss is multiplied by; always a power of two, so that it costs no precision.
    pub scale: f64,
    /// Steps since the scale changed.
    pub good_steps: usize,
    /// Steps left out since the last good one.
    pub skipped: usize,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: 65536.0, good_steps: 0, skipped: 0 }
    }
}

impl LossScale {
    /// After a step whose gradient was finite.
    pub fn good(&mut self) {
        self.skipped = 0;
        self.good_steps += 1;
        if self.good_steps == INTERVAL {
            *self = Self { scale: self.scale * GROWTH, ..Self::default() };
        }
    }

    /// After a step that was left out; false when no scale is left to try, because the gradient overflows unscaled.
    pub fn overflow(&mut self) -> bool {
        let possible = self.scale > 1.0;
        *self = Self { scale: self.scale * BACK_OFF, good_steps: 0, skipped: self.skipped + 1 };
        possible
    }
}
