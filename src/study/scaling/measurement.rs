//! The measurement of one short training run, and its comparison with another.
//!
//! Medians and quartiles are used instead of means, because interruptions by the system cause outliers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::metrics::line::count;

/// Weak or strong scaling: the quantity that stays constant when replicas are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The batch of a replica: more replicas do more work per step, in the same time at best.
    Weak,
    /// The global batch: more replicas do the same work, in less time at best.
    Strong,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Weak { "weak" } else { "strong" })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub mode: Mode,
    pub replicas: usize,
    pub processes: usize,
    /// Whether some replicas shared a device, or processor cores that each could have used alone.
    pub devices_shared: bool,
    pub steps: usize,
    pub step_seconds: Vec<f64>,
    /// Images of a step, over all replicas.
    pub images_per_step: usize,
    /// Median seconds per step in which a replica waited for collectives.
    pub exposed_communication: f64,
    /// Peak memory of a process, in bytes; 0 if unknown.
    pub memory_bytes: u64,
}

impl Measurement {
    pub fn name(&self) -> String {
        format!("{} scaling, {}, {}", self.mode, count(self.replicas, "replica"), count(self.processes, "process"))
    }

    /// Images per second in the median step.
    pub fn images_per_second(&self) -> f64 {
        self.images_per_step as f64 / self.quantile(0.5)
    }

    /// The quantile of the step times by linear interpolation (definition 7 of Hyndman and Fan, Sample Quantiles in
    /// Statistical Packages, 1996), in seconds.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.step_seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        let at = share * last as f64;
        let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
        below + (above - below) * at.fract()
    }
}

/// A measurement relative to the smallest configuration of its mode: a row of the table and of `scaling.csv`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) mode: Mode,
    pub(super) replicas: usize,
    pub(super) processes: usize,
    pub(super) devices_shared: bool,
    steps: usize,
    pub(super) images_per_step: usize,
    /// The median, and the quartiles.
    pub(super) step_seconds: f64,
    pub(super) step_seconds_q1: f64,
    pub(super) step_seconds_q3: f64,
    pub(super) images_per_second: f64,
    /// Throughput relative to the smallest configuration.
    pub(super) speed_up: f64,
    /// The speed-up divided by the ratio of replicas.
    pub(super) efficiency: f64,
    exposed_communication: f64,
    /// The same as a share of the median step.
    pub(super) exposed_share: f64,
    pub(super) memory_bytes: u64,
}

impl Row {
    /// The measurement relative to `base`, the smallest one of its mode.
    pub(super) fn new(it: &Measurement, base: &Measurement) -> Self {
        let [step_seconds_q1, step_seconds, step_seconds_q3] = [0.25, 0.5, 0.75].map(|share| it.quantile(share));
        let speed_up = it.images_per_second() / base.images_per_second();
        Self {
            mode: it.mode,
            replicas: it.replicas,
            processes: it.processes,
            devices_shared: it.devices_shared,
            steps: it.steps,
            images_per_step: it.images_per_step,
            step_seconds,
            step_seconds_q1,
            step_seconds_q3,
            images_per_second: it.images_per_second(),
            speed_up,
            efficiency: speed_up * base.replicas as f64 / it.replicas as f64,
            exposed_communication: it.exposed_communication,
            exposed_share: it.exposed_communication / step_seconds,
            memory_bytes: it.memory_bytes,
        }
    }
}
