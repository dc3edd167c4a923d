//! Key results of a run, and the comparison of several runs.

use super::markup::tiles;
use super::run::Run;
use super::table::{Cell, Table};
use crate::metrics::line::{learning_rate, rate as rate_of};
use crate::metrics::meter::ETA_WINDOW;
use crate::metrics::{StepRecord, Summary, format_duration, gibibytes};

const UNKNOWN: &str = "\u{2013}";
/// A key that differs between all runs and is not compared.
const OUTPUT_DIR: &str = "run.output_dir";

/// The results of a run.
///
/// Records take precedence over the summary, which may not cover the sessions before a resumption.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Numbers {
    /// The best validation accuracy, as a fraction, and the first epoch (from 1) it was reached in.
    pub best: Option<(f64, usize)>,
    /// The last validation accuracy, as a fraction.
    pub last: Option<f64>,
    pub loss: Option<f64>,
    pub images_per_second: Option<f64>,
    pub seconds: Option<f64>,
}

impl Numbers {
    pub(crate) fn of(run: &Run) -> Self {
        let summary = run.summary.as_ref();
        let last = run.epochs.last();
        Self {
            best: best(run).or(summary.and_then(|it| it.best)),
            last: last.map(|it| it.val_accuracy).or(summary.and_then(|it| it.last)),
            loss: last.map(|it| it.val_loss),
            images_per_second: summary.and_then(|it| it.images_per_second).or(rate(run)),
            seconds: summary.map(|it| it.seconds).or(seconds(run)),
        }
    }
}

/// The numbers of a run: a name, the value, and a remark that may be empty.
pub(crate) fn headline(run: &Run) -> Vec<(&'static str, String, String)> {
    let summary = run.summary.as_ref();
    let Numbers { best, last, images_per_second: rate, seconds, .. } = Numbers::of(run);
    let step = run.last_step().max(summary.map_or(0, |it| it.steps));
    let memory = summary.and_then(|it| it.peak_memory).map(|bytes| gibibytes(bytes as f64));
    let left_out = summary.map(|it| it.left_out).filter(|count| *count > 0);
    let setting = |key| run.setting(key).map(String::from);
    let backend = run.environment.get("backend").cloned().or(setting("parallel.backend"));
    let all = [
        ("Best accuracy", best.map(|it| percent(it.0)), best.map(|it| format!("validation, epoch {}", it.1))),
        ("Last accuracy", last.map(percent), Some("validation".into())),
        ("Epochs", epochs(run), run.setting("run.epochs").map(|goal| format!("of {goal}"))),
        ("Steps", (step > 0).then(|| step.to_string()), None),
        ("Duration", seconds.map(format_duration), None),
        (
            "Throughput",
            rate.map(|it| format!("{it:.0}")),
            Some(format!("images/s{}", summary.map(Summary::measured_over).unwrap_or_default())),
        ),
        ("Peak memory", memory, None),
        ("Left out", left_out.map(|count| count.to_string()), Some("damaged images".into())),
        ("World size", setting("parallel.world_size"), Some("replicas".into())),
        ("Backend", backend, None),
        ("Precision", setting("run.precision"), None),
    ];
    all.into_iter()
        .map(|(name, value, remark)| (name, value.unwrap_or(UNKNOWN.into()), remark.unwrap_or_default()))
        .collect()
}

/// The results of one run as tiles, of several as a table, without values that are unknown for all runs.
pub(crate) fn html(runs: &[Run]) -> String {
    let all: Vec<_> = runs.iter().map(headline).collect();
    let is_known = |at: &usize| all.iter().any(|run| run[*at].1 != UNKNOWN);
    let known: Vec<usize> = (0..all.first().map_or(0, Vec::len)).filter(is_known).collect();
    if let [run] = all.as_slice() {
        return tiles(&known.into_iter().map(|at| run[at].clone()).collect::<Vec<_>>());
    }
    let mut table = Table::new("Validation accuracy; throughput in images/s", ["Run"]);
    for (run, numbers) in runs.iter().zip(&all) {
        let cells = known.iter().map(|at| Cell::number(&numbers[*at].1));
        let name = Cell::link(&run.name, run.link.as_deref());
        table.rows.push(std::iter::once(name).chain(cells).collect());
    }
    table.head.extend(known.iter().map(|at| all[0][*at].0.to_string()));
    table.html()
}

/// How far a run is that has not ended, and how fast each of its processes; empty for others.
pub(super) fn progress(run: &Run) -> String {
    let (None, Some(goal), Some(last)) = (&run.summary, &run.start, run.steps.last()) else { return String::new() };
    let (step, steps) = (last.step, goal.steps);
    let remaining = remaining(&run.steps, steps).map_or(UNKNOWN.into(), format_duration);
    let tiles = tiles(&[
        ("Progress", format!("{:.1} %", 100.0 * step as f64 / steps.max(1) as f64), format!("step {step} of {steps}")),
        ("Remaining", remaining, "at the pace of the last minute".into()),
        ("Training loss", format!("{:.4}", last.loss), "last step".into()),
        ("Training accuracy", percent(last.accuracy), "last step".into()),
        ("Learning rate", learning_rate(last.lr), String::new()),
    ]);
    let mut table = Table::new("Processes, at their last step", ["Process", "Step", "Images/s", "Step time", "Memory"]);
    let others = run.others.iter().filter_map(|(rank, steps)| Some((*rank, steps.last()?)));
    let all = std::iter::once((0, last)).chain(others).filter(|_| !run.others.is_empty());
    table.rows.extend(all.map(|(rank, it)| {
        let memory = it.memory.map_or(UNKNOWN.into(), |bytes| gibibytes(bytes as f64));
        let numbers = [rate_of(it.images_per_second), format!("{:.3} s", it.step_seconds), memory];
        let head = [rank, it.step].map(|number| number.to_string());
        head.into_iter().chain(numbers).map(Cell::number).collect()
    }));
    format!("<progress max=\"{steps}\" value=\"{step}\"></progress>\n{tiles}{}", table.html())
}

/// Seconds to the last of `goal` steps at the pace of the last minute, or of the last step; `None` before the second.
fn remaining(steps: &[StepRecord], goal: usize) -> Option<f64> {
    let last = steps.last()?;
    let is_recent = |it: &StepRecord| it.seconds >= last.seconds - ETA_WINDOW;
    let recent = steps.iter().rev().enumerate().take_while(|(at, it)| *at < 2 || is_recent(it));
    let (_, first) = recent.last()?;
    let pace = (last.step.checked_sub(first.step)? as f64) / (last.seconds - first.seconds);
    (pace > 0.0).then(|| goal.saturating_sub(last.step) as f64 / pace)
}

/// The settings that differ between runs, as a table.
pub(crate) fn differences(runs: &[Run]) -> String {
    let mut keys: Vec<&String> = runs.iter().flat_map(|run| run.settings.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut table = Table::new("The value in each run", ["Setting"]);
    table.head.extend(runs.iter().map(|run| run.name.clone()));
    // Runs without a configuration are not compared.
    let known: Vec<&Run> = runs.iter().filter(|run| !run.settings.is_empty()).collect();
    let differs = |key: &&&String| known.windows(2).any(|two| two[0].setting(key) != two[1].setting(key));
    for key in keys.iter().filter(differs).filter(|key| **key != OUTPUT_DIR) {
        let values = runs.iter().map(|run| Cell::text(run.setting(key).unwrap_or(UNKNOWN)));
        table.rows.push(std::iter::once(Cell::text(key)).chain(values).collect());
    }
    table.html()
}

/// A fraction in percent with two decimals, the resolution of ten thousand images.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.2} %", 100.0 * fraction)
}

/// The first epoch of the highest validation accuracy.
fn best(run: &Run) -> Option<(f64, usize)> {
    let finite = run.epochs.iter().filter(|it| it.val_accuracy.is_finite());
    finite.rev().max_by(|a, b| a.val_accuracy.total_cmp(&b.val_accuracy)).map(|it| (it.val_accuracy, it.epoch))
}

fn epochs(run: &Run) -> Option<String> {
    let recorded = run.epochs.iter().map(|it| it.epoch).max();
    recorded.or(run.summary.as_ref().map(|it| it.epochs)).map(|epochs| epochs.to_string())
}

fn seconds(run: &Run) -> Option<f64> {
    let (steps, epochs) = (run.steps.iter().map(|it| it.seconds), run.epochs.iter().map(|it| it.seconds));
    steps.chain(epochs).reduce(f64::max)
}

fn rate(run: &Run) -> Option<f64> {
    let epoch = run.epochs.last().and_then(|it| Some((it.step, it.images_per_second?)));
    let step = run.steps.last().and_then(|it| Some((it.step, it.images_per_second?)));
    // An epoch's own rate goes before that of its last steps.
    step.into_iter().chain(epoch).max_by_key(|(step, _)| *step).map(|(_, rate)| rate)
}
