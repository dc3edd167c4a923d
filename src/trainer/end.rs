//! The end of a run: its summary, for people and for programs.

use std::collections::BTreeMap;
use std::io::stdout;
use std::path::Path;

use kiln_engine::checkpoint::write_atomic;
use kiln_engine::parallel::{BackendKind, Plan, Position};
use kiln_system::stop::Reason;
use kiln_system::{Result, shown};
use kiln_training::{backend, backend_name};
use serde_json::Value;

use super::recorder::RunTotals;
use super::terminal::{say, warn};
use crate::config::{Config, ProgressKind};
use crate::metrics::{JsonStream, Summary, environment, peak_memory};
use crate::report::Run;
use crate::report::results::Numbers;

const FILE: &str = "summary.json";

pub(super) fn finish(
    config: &Config,
    directory: &Path,
    totals: &RunTotals,
    seconds: f64,
    reason: Option<Reason>,
) -> Result<()> {
    let summary = Summary {
        seconds,
        images_per_second: (totals.training_seconds > 0.0).then(|| totals.images as f64 / totals.training_seconds),
        peak_memory: peak_memory(),
        complete: matches!(reason, None | Some(Reason::MaxTime)),
        environment: surroundings(config.parallel.backend)?,
        ..totals.summary.clone()
    };
    write(directory, &summary)?;
    let page = directory.join("report.html");
    let reported = crate::report::write(&[directory.to_path_buf()], &page);
    if let Err(error) = &reported {
        warn(&format!("warning: the report was not written: {error}"));
    }
    if config.run.progress.is_text() {
        match &reason {
            Some(reason @ (Reason::Signal(_) | Reason::MaxTime)) => {
                say(&format!("\nstopped by {reason}; continue with --resume"));
            }
            Some(Reason::Failure(_)) => say(""),
            None if totals.stalled => {
                say(&format!("\nstopped early: no better validation in {} epochs", config.run.early_stopping));
            }
            None => say(""),
        }
        say(&summary.to_string());
        if reported.is_ok() {
            say(&format!("report      {}", shown(&page)));
        }
    }
    tell_programs(config.run.progress, &summary);
    Ok(())
}

/// The last line of `--progress json`.
fn tell_programs(progress: ProgressKind, summary: &Summary) {
    if progress == ProgressKind::Json {
        JsonStream::new(stdout()).end(summary);
    }
}

/// The message for a run that is complete at `position`.
pub(super) fn nothing_left(plan: &Plan, position: &Position) -> String {
    let is_over = plan.is_over(position.epoch, position.best);
    let limit = if is_over && position.epoch < plan.epochs {
        "--early-stopping"
    } else {
        "--epochs or --max-steps (or run.stop_after)"
    };
    format!("the run is complete: {} steps are done; to continue, raise {limit}", position.global_step)
}

/// Writes the summary of a run of `epochs` and `steps` that is complete but was ended before it could; the results
/// come from its records.
pub(super) fn summarize_complete(
    config: &Config,
    directory: &Path,
    steps: [usize; 2],
    checkpoint: Option<&Path>,
) -> Result<()> {
    let [epochs, steps] = steps;
    let run = Run::read(directory)?;
    let numbers = Numbers::of(&run);
    let summary = run.summary.unwrap_or(Summary {
        epochs,
        steps,
        best: numbers.best,
        last: numbers.last,
        seconds: numbers.seconds.unwrap_or_default(),
        images_per_second: numbers.images_per_second,
        checkpoint: checkpoint.map(Path::to_path_buf),
        environment: surroundings(config.parallel.backend)?,
        ..Summary::default()
    });
    let complete = Summary { complete: true, ..summary.clone() };
    if !summary.complete {
        write(directory, &complete)?;
    }
    tell_programs(config.run.progress, &complete);
    Ok(())
}

fn surroundings(kind: BackendKind) -> Result<BTreeMap<String, Value>> {
    let backend = backend(kind)?;
    let mut known = environment();
    known.insert("backend".into(), backend_name(backend.kind()).into());
    known.insert("device".into(), backend.name_of_devices());
    Ok(known.into_iter().map(|(name, value)| (name, value.into())).collect())
}

fn write(directory: &Path, summary: &Summary) -> Result<()> {
    let json = serde_json::to_vec_pretty(summary).expect("plain numbers and paths are always JSON");
    write_atomic(&directory.join(FILE), &json)
}
