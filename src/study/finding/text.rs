//! Findings as text: lines for the terminal, table cells and CSV.

use std::fmt;

use serde::Serialize;

use super::batch_size::Analysis;
use super::curve::Probe;
use super::learning_rate::{RangeTest, shown};
use super::search::{Outcome, Trial};
use crate::metrics::gibibytes;
use crate::report::axis::plain;
use crate::study::{UNKNOWN, aligned, percent, rate};

const HEAD: [&str; 4] = ["images", "images/s", "of the best", "memory"];

/// A step of a range test: a row of `find-lr.csv`.
#[derive(Serialize)]
pub(super) struct StepRow {
    /// From 1.
    step: usize,
    learning_rate: f64,
    loss: f64,
    /// `None` after divergence.
    averaged_learning_rate: Option<f64>,
    averaged_loss: Option<f64>,
}

/// A trial: a row of `find-batch-size.csv`.
#[derive(Serialize)]
pub(super) struct TrialRow {
    batch_size: usize,
    fits: bool,
    images_per_second: Option<f64>,
    of_the_best: Option<f64>,
    memory_bytes: Option<u64>,
    why: String,
}

pub(super) fn step_rows(test: &RangeTest) -> Vec<StepRow> {
    let row = |(at, probe): (usize, &Probe)| {
        let averaged = test.averaged.get(at);
        StepRow {
            step: at + 1,
            learning_rate: probe.rate,
            loss: probe.loss,
            averaged_learning_rate: averaged.map(|it| it.rate),
            averaged_loss: averaged.map(|it| it.loss),
        }
    };
    test.probes.iter().enumerate().map(row).collect()
}

pub(super) fn trial_rows(analysis: &Analysis) -> Vec<TrialRow> {
    let row = |it: &Trial| TrialRow {
        batch_size: it.batch_size,
        fits: it.fits(),
        images_per_second: it.images_per_second(),
        of_the_best: it.images_per_second().zip(analysis.best).map(|(rate, (_, best))| rate / best),
        memory_bytes: it.memory().map(|(_, bytes)| bytes),
        why: match &it.outcome {
            Outcome::Fits { .. } => String::new(),
            Outcome::TooLarge { why } => why.clone(),
        },
    };
    analysis.trials.iter().map(row).collect()
}

fn cells(row: TrialRow) -> [String; 4] {
    let known = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.into());
    [
        row.batch_size.to_string(),
        row.images_per_second.map_or_else(|| "too large".into(), rate),
        known(row.of_the_best.map(percent)),
        known(row.memory_bytes.map(|bytes| gibibytes(bytes as f64))),
    ]
}

impl fmt::Display for RangeTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(first), Some(last)) = (self.probes.first(), self.probes.last()) {
            let (steps, from, to) = (self.probes.len(), shown(first.rate), shown(last.rate));
            write!(f, "range test  {steps} steps, learning rate {from} to {to}")?;
            self.cut_off.iter().try_for_each(|rate| write!(f, ", cut off at {}", shown(*rate)))?;
            writeln!(f)?;
        }
        let it = match &self.verdict {
            Ok(suggestion) => suggestion,
            Err(none) => return write!(f, "no suggestion: {none}"),
        };
        writeln!(f, "steepest    {}, where the loss falls by {:.2} per decade", shown(it.steepest), -it.slope)?;
        writeln!(f, "minimum     {}", shown(it.minimum))?;
        let [low, high] = it.range.map(shown);
        writeln!(f, "suggestion  {}, a tenth of the rate at the minimum; plausible: {low} to {high}", shown(it.tenth))?;
        write!(f, "use         --learning-rate {}", shown(it.learning_rate))?;
        if self.growth == 1.0 {
            return Ok(());
        }
        let (times, effective) = (plain(self.growth), shown(it.effective));
        write!(f, " (times {times} by schedule.lr_scaling: {effective} for all replicas together)")
    }
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&aligned(&HEAD, trial_rows(self).into_iter().map(cells)))?;
        if let Some(largest) = self.largest {
            write!(f, "largest     {largest} images per replica fit")?;
            self.too_large.iter().try_for_each(|size| write!(f, ", {size} do not"))?;
            f.write_str(if self.is_past_peak() { "; larger ones were not tried" } else { "" })?;
            writeln!(f)?;
        }
        if let Some(line) = &self.memory {
            let per_image = line.per_image / (1u64 << 20) as f64;
            write!(f, "memory      {} + {per_image:.2} MiB per image", gibibytes(line.fixed))?;
            self.memory_limit.iter().try_for_each(|bytes| write!(f, ", of {}", gibibytes(*bytes as f64)))?;
            writeln!(f)?;
        }
        if let Some((size, it)) = self.suggestion.and_then(|size| Some((size, self.share(size)?))) {
            writeln!(f, "suggestion  {size}, the smallest with {} of the best throughput", percent(it))?;
            writeln!(f, "use         --batch-size {size}")?;
        }
        let caveats: Vec<String> = self.caveats().iter().map(|caveat| format!("note: {caveat}")).collect();
        f.write_str(&caveats.join("\n"))
    }
}
