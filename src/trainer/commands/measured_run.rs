//! Short runs in child processes, for measurements: their settings, and the results in their files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kiln_system::file::{self, GIB};
use kiln_system::{Error, Result, shown};
use kiln_training::{backend, backend_name};

use crate::config::{Config, Request, faults, flag};
use crate::metrics::{Record, StepRecord, Summary};
use crate::report::trace::Trace;
use crate::trainer::child::{self, Ended};

/// Flags that make a command's internal run write only to its own directory: no copies of checkpoints, and no file of
/// the best model.
pub(super) const NOTHING_ELSE: [&str; 2] = ["--checkpoint-url=", "--checkpoint="];

/// The profiler's names of the phases in which replicas wait for each other.
const WAITING: [&str; 6] = [
    "all-reduce",
    "exchange of losses",
    "statistics",
    "wait for replicas",
    "wait for the stage before",
    "wait for the stage behind",
];
/// The last phase of every step, which every replica has once.
const LAST: &str = "all-reduce";

/// A run whose directory is deleted on drop.
pub(super) struct MeasuredRun {
    directory: tempfile::TempDir,
    pub(super) ended: Ended,
}

impl MeasuredRun {
    /// Trains for `steps` steps by the user's `arguments` and the `own` of a command in `processes` processes, without
    /// superfluous outputs.
    pub(super) fn run(
        arguments: &[OsString],
        mut own: Vec<String>,
        processes: usize,
        steps: usize,
        profile: bool,
    ) -> Result<Self> {
        let directory = tempfile::tempdir().map_err(Error::io("create", std::env::temp_dir()))?;
        let run = directory.path().join("run");
        own.extend([
            format!("--output-dir={}", run.display()),
            format!("--max-steps={steps}"),
            // Enough epochs for any number of steps.
            format!("--epochs={steps}"),
            "--warmup-epochs=0".into(),
            "--limit-val-batches=1".into(),
            "--checkpoint-every=never".into(),
            "--progress=none".into(),
        ]);
        own.extend(NOTHING_ELSE.map(String::from));
        if profile {
            own.push("--profile".into());
        }
        let launch = ["launch".to_string(), format!("--nproc={processes}"), "--".into()];
        let front = if processes > 1 { launch.to_vec() } else { Vec::new() };
        let [front, own] = [front, own].map(|words| words.into_iter().map(OsString::from));
        let ended = child::run(front.chain(arguments.iter().cloned()).chain(own), true)?;
        Ok(Self { directory, ended })
    }

    pub(super) fn failure(&self, what: &str) -> Error {
        Error::Training(format!("{what} could not be measured: {}", self.ended.why()))
    }

    /// Images per second at its end.
    pub(super) fn rate(&self) -> Result<f64> {
        Ok(self.steps()?.last().and_then(|step| step.images_per_second).unwrap_or_default())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("run").join(name)
    }

    pub(super) fn steps(&self) -> Result<Vec<StepRecord>> {
        Ok(steps_of(&text_of(&self.path("metrics.jsonl"))?))
    }

    /// The peak memory of the first process, in bytes; 0 if unknown.
    pub(super) fn memory(&self) -> u64 {
        let read = |path: &Path| serde_json::from_slice::<Summary>(&std::fs::read(path).ok()?).ok()?.peak_memory;
        read(&self.path("summary.json")).unwrap_or(0)
    }

    /// Seconds per step that the first replica waited for others: the median after `skipped` steps.
    pub(super) fn waiting(&self, skipped: usize) -> Result<f64> {
        let path = self.path("trace.json");
        let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let trace: Trace = serde_json::from_slice(&bytes)
            .map_err(|reason| Error::Data(format!("'{}' is damaged: {reason}; measure again", shown(&path))))?;
        let mut steps = vec![0.0];
        let threads = trace.threads();
        let first = threads.iter().map(|(_, spans)| spans).find(|spans| spans.iter().any(|span| span.name == LAST));
        for span in first.into_iter().flatten().filter(|span| WAITING.contains(&span.name)) {
            let current = steps.len() - 1;
            steps[current] += span.seconds;
            if span.name == LAST {
                steps.push(0.0);
            }
        }
        steps.pop();
        Ok(median(steps.split_off(skipped.min(steps.len()))).unwrap_or(0.0))
    }
}

pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

pub(super) fn text_of(log: &Path) -> Result<String> {
    file::text(log, 4 * GIB).map_err(Error::io("read", log))
}

pub(super) fn steps_of(log: &str) -> Vec<StepRecord> {
    let step = |line| if let Ok(Record::Step(step)) = serde_json::from_str(line) { Some(step) } else { None };
    log.lines().filter_map(step).collect()
}

/// Settings that every measured run fixes, so that the user cannot give them.
const FIXED: [&str; 9] = [
    "run.output_dir",
    "run.epochs",
    "run.max_steps",
    "run.stop_after",
    "run.limit_val_batches",
    "run.progress",
    "schedule.warmup_epochs",
    "checkpoint.every",
    "checkpoint.resume",
];

/// Refuses settings that `command` chooses itself: the fixed settings of measured runs, and `varied`.
pub(super) fn refuse(request: &Request, command: &str, varied: &[&str]) -> Result<()> {
    let given = FIXED.iter().chain(varied).filter(|key| request.names(key));
    let name = |key: &str| flag::of_key(key).map_or_else(|| key.to_string(), |flag| format!("--{}", flag.long));
    let line = |key: &&str| format!("train {command} sets {} itself; remove it after the --", name(key));
    let lines: Vec<String> = given.map(line).collect();
    if lines.is_empty() { Ok(()) } else { Err(Error::Usage([lines, faults(request)].concat())) }
}

/// The conditions of the measurements, as names and values.
pub(super) fn about(config: &Config) -> Result<BTreeMap<String, String>> {
    let backend = backend(config.parallel.backend)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pairs = [
        ("backend", backend_name(backend.kind()).to_string()),
        ("device", backend.name_of_devices()),
        ("cores", cores.to_string()),
        ("batch size", config.parallel.batch_size.to_string()),
        ("network", config.model.architecture().to_string()),
        ("width", config.model.width.to_string()),
        ("stem", format!("{:?}", config.model.stem).to_lowercase()),
        ("precision", config.run.precision.name().to_string()),
        ("data", format!("{:?}", config.data.source).to_lowercase()),
        ("version", env!("CARGO_PKG_VERSION").to_string()),
    ];
    Ok(pairs.map(|(name, value)| (name.to_string(), value)).into())
}
