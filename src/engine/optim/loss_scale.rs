//! Dynamic loss scaling for f16 (Micikevicius et al. 2018, section 3.2; the constants of `torch.amp.GradScaler`).
//!
//! Small gradients underflow in f16, so the loss is multiplied by a scale and the update divides by it. A step whose
//! gradient overflows is skipped on all replicas, which all have the same reduced gradient, and the scale is halved.

use serde::{Deserialize, Serialize};

/// Successful steps after which the scale doubles.
const INTERVAL: usize = 2000;
const GROWTH: f64 = 2.0;
const BACK_OFF: f64 = 0.5;

/// The scale and its step counters; part of a run's position.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// Factor on the loss; always a power of two, so that scaling is exact.
    pub scale: f64,
    pub good_steps: usize,
    /// Steps skipped since the last successful one.
    pub skipped: usize,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: 65536.0, good_steps: 0, skipped: 0 }
    }
}

impl LossScale {
    /// Records a step with a finite gradient.
    pub fn good(&mut self) {
        self.skipped = 0;
        self.good_steps += 1;
        if self.good_steps == INTERVAL {
            *self = Self { scale: self.scale * GROWTH, ..Self::default() };
        }
    }

    /// Records a skipped step; false if the scale cannot be reduced further, because the gradient overflows unscaled.
    pub fn overflow(&mut self) -> bool {
        let possible = self.scale > 1.0;
        *self = Self { scale: self.scale * BACK_OFF, good_steps: 0, skipped: self.skipped + 1 };
        possible
    }
}
