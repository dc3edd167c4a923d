//! The measurement of one short training run.
//!
//! Medians and quartiles are used instead of means, because interruptions by the system cause outliers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::metrics::line::count;

/// The plausible times of a step, in seconds.
const BELIEVED: std::ops::RangeInclusive<f64> = 1e-9..=1e9;

/// Weak or strong scaling: the quantity that stays constant when replicas are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The batch of a replica: more replicas do more work per step, in the same time at best.
    Weak,
    /// The global batch: more replicas do the same work, in less time at best.
    Strong,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weak => "weak",
            Self::Strong => "strong",
        })
    }
}

/// The measured steps of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Weak or strong scaling.
    pub mode: Mode,
    /// Replicas of the run.
    pub replicas: usize,
    /// Processes of the run.
    pub processes: usize,
    /// Whether some replicas shared a device, or processor cores that each could have used alone.
    pub devices_shared: bool,
    /// Number of measured steps.
    pub steps: usize,
    /// Seconds of each step.
    pub step_seconds: Vec<f64>,
    /// Images of a step, over all replicas.
    pub images_per_step: usize,
    /// Median seconds per step in which a replica waited for collectives.
    pub exposed_communication: f64,
    /// Peak memory of a process, in bytes; 0 if unknown.
    pub memory_bytes: u64,
}

impl Measurement {
    /// Refuses an impossible measurement.
    ///
    /// # Errors
    /// [`Error::Data`] naming the measurement and the rule.
    pub fn check(&self) -> Result<()> {
        let longest = self.step_seconds.iter().copied().fold(0.0, f64::max);
        let rules = [
            (self.replicas > 0, "has no replica"),
            ((1..=self.replicas).contains(&self.processes), "needs at least one process, and a replica in each"),
            (self.images_per_step > 0, "has no image in a step"),
            (!self.step_seconds.is_empty(), "has no step; measure one at least"),
            (self.steps == self.step_seconds.len(), "does not have a time for every step"),
            (self.step_seconds.iter().all(|it| BELIEVED.contains(it)), "has a step whose time no clock can measure"),
            ((0.0..=longest).contains(&self.exposed_communication), "waits for collectives longer than a step takes"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, broken)) => {
                Err(Error::Data(format!("the measurement '{}' {broken}; measure it again", self.name())))
            }
            None => Ok(()),
        }
    }

    /// A description for messages.
    pub fn name(&self) -> String {
        format!("{} scaling, {}, {}", self.mode, count(self.replicas, "replica"), count(self.processes, "process"))
    }

    /// The median time of a step, in seconds.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The lower and upper quartile of the step times, in seconds.
    pub fn quartiles(&self) -> [f64; 2] {
        [0.25, 0.75].map(|share| self.quantile(share))
    }

    /// Images per second in the median step.
    pub fn images_per_second(&self) -> f64 {
        self.images_per_step as f64 / self.median()
    }

    /// The share of the median step in which a replica waited for collectives.
    pub fn exposed_share(&self) -> f64 {
        self.exposed_communication / self.median()
    }

    /// The quantile by linear interpolation (definition 7 of Hyndman and Fan, Sample Quantiles in Statistical Packages,
    /// 1996).
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.step_seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        let at = share * last as f64;
        let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
        below + (above - below) * at.fract()
    }
}
