//! Comparison of measurements: speed-up, efficiency, and predictions of the fitted model.

use serde::{Deserialize, Serialize};

use super::fit::{Estimate, Fit};
use super::measurement::{Measurement, Mode};
use crate::metrics::line::count;

/// A measurement relative to the smallest configuration of its mode: a row of the table and of `scaling.csv`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Weak or strong scaling.
    pub mode: Mode,
    /// Replicas of the run.
    pub replicas: usize,
    /// Processes of the run.
    pub processes: usize,
    /// Whether some replicas shared a device or its cores.
    pub devices_shared: bool,
    /// Measured steps.
    pub steps: usize,
    /// Images of a step, over all replicas.
    pub images_per_step: usize,
    /// The median time of a step.
    pub step_seconds: f64,
    /// The lower quartile.
    pub step_seconds_q1: f64,
    /// The upper quartile.
    pub step_seconds_q3: f64,
    /// Images per second in the median step.
    pub images_per_second: f64,
    /// Throughput as a multiple of that of the smallest configuration.
    pub speed_up: f64,
    /// The speed-up divided by the ratio of replicas.
    pub efficiency: f64,
    /// Seconds of a step in which a replica waited for collectives.
    pub exposed_communication: f64,
    /// The same as a share of the median step.
    pub exposed_share: f64,
    /// Peak memory of a process, in bytes; 0 if unknown.
    pub memory_bytes: u64,
}

/// The distribution of a curve's replicas over processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// A fixed number of processes.
    Processes(usize),
    /// A process per replica.
    Each,
}

/// Measurements that differ in the number of replicas only.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Weak or strong scaling.
    pub mode: Mode,
    /// The distribution over processes.
    pub layout: Layout,
    /// The measurements, the smallest first.
    pub rows: Vec<Row>,
    /// The model; `None` for a single size.
    pub fit: Option<Fit>,
    /// Predictions for sizes that were not measured.
    pub predictions: Vec<Prediction>,
}

/// The model's prediction for a number of replicas.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Number of replicas.
    pub replicas: usize,
    /// Seconds of a step.
    pub step_seconds: Estimate,
    /// Images per second.
    pub images_per_second: Estimate,
    /// Efficiency relative to the smallest configuration of the mode.
    pub efficiency: Estimate,
}

impl Row {
    /// The measurement relative to `base`, the smallest one of its mode.
    pub fn new(it: &Measurement, base: &Measurement) -> Self {
        let [step_seconds_q1, step_seconds_q3] = it.quartiles();
        let speed_up = it.images_per_second() / base.images_per_second();
        Self {
            mode: it.mode,
            replicas: it.replicas,
            processes: it.processes,
            devices_shared: it.devices_shared,
            steps: it.steps,
            images_per_step: it.images_per_step,
            step_seconds: it.median(),
            step_seconds_q1,
            step_seconds_q3,
            images_per_second: it.images_per_second(),
            speed_up,
            efficiency: speed_up * base.replicas as f64 / it.replicas as f64,
            exposed_communication: it.exposed_communication,
            exposed_share: it.exposed_share(),
            memory_bytes: it.memory_bytes,
        }
    }
}

impl Layout {
    /// In words.
    pub fn name(self) -> String {
        match self {
            Self::Processes(processes) => count(processes, "process"),
            Self::Each => "a process per replica".into(),
        }
    }

    fn holds(self, row: &Row) -> bool {
        match self {
            Self::Processes(processes) => row.processes == processes,
            Self::Each => row.processes == row.replicas,
        }
    }
}

/// The rows of a mode as few curves that cover all rows, the longest first.
pub fn curves(mode: Mode, rows: &[Row]) -> Vec<Curve> {
    let mut left: Vec<&Row> = rows.iter().filter(|row| row.mode == mode).collect();
    let mut layouts: Vec<Layout> = left.iter().map(|row| Layout::Processes(row.processes)).collect();
    layouts.push(Layout::Each);
    let of = |layout: Layout| rows.iter().filter(move |row| row.mode == mode && layout.holds(row));
    layouts.sort_by_key(|layout| std::cmp::Reverse(of(*layout).count()));
    let mut curves = Vec::new();
    for layout in layouts {
        if left.iter().any(|row| layout.holds(row)) {
            left.retain(|row| !layout.holds(row));
            curves.push(Curve::new(mode, layout, of(layout).cloned().collect()));
        }
    }
    curves
}

impl Curve {
    fn new(mode: Mode, layout: Layout, rows: Vec<Row>) -> Self {
        let points = |all: bool| {
            let fitted = rows.iter().filter(move |row| all || !row.devices_shared);
            fitted.map(|row| (row.replicas, row.step_seconds)).collect::<Vec<_>>()
        };
        // Sizes with shared devices would bias the fit of those without.
        let fit = Fit::new(mode, &points(false)).or_else(|| Fit::new(mode, &points(true)));
        Self { mode, layout, rows, fit, predictions: Vec::new() }
    }

    /// Whether the model describes replicas that share devices.
    pub fn is_shared(&self) -> bool {
        let fitted = |row: &&Row| self.fit.as_ref().is_some_and(|fit| fit.replicas.contains(&row.replicas));
        self.rows.iter().filter(fitted).any(|row| row.devices_shared)
    }

    /// Predicts the given sizes that were not measured, are above the smallest one, and have an image per replica.
    pub fn predict(&mut self, sizes: &[usize]) {
        let smallest = self.rows[0].replicas;
        let is_new = |size: &&usize| **size > smallest && self.rows.iter().all(|row| row.replicas != **size);
        let mut sizes: Vec<usize> = sizes.iter().filter(is_new).copied().collect();
        sizes.retain(|size| self.mode == Mode::Weak || *size <= self.rows[0].images_per_step);
        sizes.sort_unstable();
        sizes.dedup();
        self.predictions = sizes.into_iter().filter_map(|size| self.prediction(size)).collect();
    }

    /// The prediction for a number of replicas; `None` without a model.
    pub fn prediction(&self, replicas: usize) -> Option<Prediction> {
        let size = replicas as f64;
        let step_seconds = self.step_seconds(size)?;
        // The upper end of the time is the lower end of a rate.
        let of = |rate: &dyn Fn(f64) -> f64| Estimate {
            value: rate(step_seconds.value),
            range: step_seconds.range.map(|[low, high]| [rate(high), rate(low)]),
        };
        let images_per_second = of(&|seconds| self.images(size) / seconds);
        let efficiency = of(&|seconds| self.ideal(size) / seconds);
        Some(Prediction { replicas, step_seconds, images_per_second, efficiency })
    }

    /// Predicted seconds of a step; `None` without a model.
    ///
    /// Noise can bend a model below the ideal time, which is impossible, so the ideal time is a lower limit.
    pub fn step_seconds(&self, replicas: f64) -> Option<Estimate> {
        let Estimate { value, range } = self.fit.as_ref()?.step_seconds(replicas);
        let possible = |seconds: f64| seconds.max(self.ideal(replicas));
        Some(Estimate { value: possible(value), range: range.map(|ends| ends.map(possible)) })
    }

    /// Whether the model is better than ideal at a predicted size.
    pub fn is_cut_off(&self) -> bool {
        // Smaller differences are rounding.
        let beyond =
            |it: &Prediction, fit: &Fit| fit.step_seconds(it.replicas as f64).value < 0.999 * it.step_seconds.value;
        self.fit.as_ref().is_some_and(|fit| self.predictions.iter().any(|it| beyond(it, fit)))
    }

    /// Images of a step with `replicas` replicas.
    pub fn images(&self, replicas: f64) -> f64 {
        let first = &self.rows[0];
        let times = if self.mode == Mode::Weak { replicas / first.replicas as f64 } else { 1.0 };
        first.images_per_step as f64 * times
    }

    /// Seconds of a step with `replicas` replicas at an efficiency of 1.
    pub fn ideal(&self, replicas: f64) -> f64 {
        let first = &self.rows[0];
        let times = if self.mode == Mode::Weak { 1.0 } else { first.replicas as f64 / replicas };
        first.step_seconds * first.efficiency * times
    }
}
