//! Findings as text: lines for the terminal, table cells and CSV.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::batch_size::Analysis;
use super::curve::Probe;
use super::learning_rate::{RangeTest, Suggestion, shown};
use super::trial::{MemoryLine, Outcome, Trial};
use crate::metrics::gibibytes;
use crate::report::axis::plain;
use crate::study::scaling::table::{aligned, percent, rate};

const UNKNOWN: &str = "-";
/// The headers of [`cells`].
pub const HEAD: [&str; 4] = ["images", "images/s", "of the best", "memory"];

/// A step of a range test: a row of `find-lr.csv`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// Number of the step, from 1.
    pub step: usize,
    /// The rate of the step.
    pub learning_rate: f64,
    /// Its loss.
    pub loss: f64,
    /// The averaged rate; `None` after divergence.
    pub averaged_learning_rate: Option<f64>,
    /// The averaged loss.
    pub averaged_loss: Option<f64>,
}

/// A trial: a row of `find-batch-size.csv`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialRow {
    /// Images of a replica in a step.
    pub batch_size: usize,
    /// Whether it fits.
    pub fits: bool,
    /// Images per second, if it fits.
    pub images_per_second: Option<f64>,
    /// Throughput as a share of the best.
    pub of_the_best: Option<f64>,
    /// Memory in bytes, if it fits and is known.
    pub memory_bytes: Option<u64>,
    /// Why it does not fit.
    pub why: String,
}

/// The steps of a test as rows.
pub fn step_rows(test: &RangeTest) -> Vec<StepRow> {
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

/// The trials as rows.
pub fn trial_rows(analysis: &Analysis) -> Vec<TrialRow> {
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

/// The cells of a trial, without the reason.
pub fn cells(row: &TrialRow) -> [String; 4] {
    let known = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.into());
    [
        row.batch_size.to_string(),
        row.images_per_second.map_or_else(|| "too large".into(), rate),
        known(row.of_the_best.map(percent)),
        known(row.memory_bytes.map(|bytes| gibibytes(bytes as f64))),
    ]
}

/// The memory line in words.
pub fn memory(line: &MemoryLine) -> String {
    format!("{} + {:.2} MiB per image", gibibytes(line.fixed), line.per_image / (1u64 << 20) as f64)
}

/// The rate after the schedule's scaling, if it differs from the flag.
pub fn scaled(suggestion: &Suggestion, growth: f64) -> Option<String> {
    let effective = shown(suggestion.effective);
    let times = plain(growth);
    (growth != 1.0).then(|| format!("times {times} by schedule.lr_scaling: {effective} for all replicas together"))
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
        writeln!(f, "suggestion  {}, a tenth of the minimum; worth a try: {low} to {high}", shown(it.tenth))?;
        write!(f, "use         --learning-rate {}", shown(it.learning_rate))?;
        scaled(it, self.growth).map_or(Ok(()), |scaled| write!(f, " ({scaled})"))
    }
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&aligned(&HEAD, &trial_rows(self).iter().map(cells).collect::<Vec<_>>()))?;
        if let Some(largest) = self.largest {
            write!(f, "largest     {largest} images per replica fit")?;
            self.too_large.iter().try_for_each(|size| write!(f, ", {size} do not"))?;
            f.write_str(if self.is_past_peak() { "; larger ones were not tried" } else { "" })?;
            writeln!(f)?;
        }
        if let Some(line) = &self.memory {
            write!(f, "memory      {}", memory(line))?;
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
