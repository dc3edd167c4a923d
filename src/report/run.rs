//! Reads a run's directory, and goes on reading it while the run writes.
//!
//! Every file may be missing or damaged: unreadable files are skipped with a note. Only a directory without any file of
//! a run is an error.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kiln_system::file::{self, MIB, TEXT};
use kiln_system::{Error, Result, shown};
use memmap2::Mmap;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::evaluation::{DIRECTORY, Evaluation};
use super::phases::{self, Phase};
use super::pipeline::Pipeline;
use super::tail::Tail;
use super::trace::Trace;
use crate::metrics::{EpochRecord, GenerationRecord, Record, ReplicasRecord, StartRecord, StepRecord, Summary};

/// The records of the run.
const LOG: &str = "metrics.jsonl";

/// The other files that are read, with the most bytes of each.
const FILES: [(&str, u64); 4] =
    [("summary.json", TEXT), ("config.toml", TEXT), ("evaluation.json", 64 * MIB), ("trace.json", 128 * MIB)];

/// Most processes of a run that are shown, the first ones.
const MOST_PROCESSES: usize = 8;

#[derive(Debug, Default)]
pub struct Run {
    /// The last part of its path.
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
    /// The address of its own page, if it has one.
    pub(crate) link: Option<String>,
    /// All steps, in the order of the file.
    pub steps: Vec<StepRecord>,
    /// The steps as the other processes that are shown saw them, by rank.
    pub(crate) others: BTreeMap<usize, Vec<StepRecord>>,
    pub epochs: Vec<EpochRecord>,
    pub generations: Vec<GenerationRecord>,
    /// How long replicas waited for each other, the last record.
    pub(super) replicas: Option<ReplicasRecord>,
    /// The start of its last session.
    pub(super) start: Option<StartRecord>,
    /// The settings that its sweep varies.
    pub(super) varied: Vec<(String, String)>,
    /// Its configuration: values by `section.key`.
    pub(crate) settings: BTreeMap<String, String>,
    /// Its summary, unless the run continued afterwards.
    pub(crate) summary: Option<Summary>,
    /// Its machine and program, from the summary.
    pub(crate) environment: BTreeMap<String, String>,
    /// Evaluations of its model: by the run, then made afterwards.
    pub(crate) evaluations: Vec<Evaluation>,
    pub phases: Vec<Phase>,
    /// A step of its stages, from the profiles of all processes.
    pub pipeline: Option<Pipeline>,
    /// Notes on missing, damaged or unusual files, one sentence each.
    pub notes: Vec<String>,
    /// Whether somebody looks at it while it may be running, so that a missing or earlier summary needs no note.
    pub(super) is_followed: bool,
    pub(super) log: Tail,
    pub(super) other_logs: BTreeMap<usize, Tail>,
}

impl Run {
    /// Reads `directory`.
    ///
    /// # Errors
    /// [`Error::Data`] if it holds no file of a run or is not a directory.
    pub fn read(directory: &Path) -> Result<Self> {
        let mut run = Self::of(directory)?;
        run.refresh();
        Ok(run)
    }

    /// The run in `directory` before anything of it is read.
    pub(super) fn of(directory: &Path) -> Result<Self> {
        let mut files = std::iter::once(LOG).chain(FILES.map(|(file, _)| file));
        if !files.any(|file| directory.join(file).exists()) {
            let what = if directory.is_dir() { "holds no run" } else { "is not a directory" };
            let remedy = "give the directory of a run, which holds a metrics.jsonl, as in runs/0001";
            return Err(Error::Data(format!("cannot report on '{}': it {what}; {remedy}", shown(directory))));
        }
        Ok(Self { name: name(directory), directory: directory.into(), ..Self::default() })
    }

    /// Reads what the files hold now; of logs that were read before, only the new records.
    pub(super) fn refresh(&mut self) {
        (self.notes, self.evaluations, self.settings, self.environment) = Default::default();
        (self.summary, self.phases, self.pipeline) = Default::default();
        self.read_metrics();
        self.read_others();
        self.read_summary();
        self.read_settings();
        for file in ["evaluation.json".to_string(), format!("{DIRECTORY}/evaluation.json")] {
            if let Some(mut evaluation) = self.json::<Evaluation>(&file) {
                self.notes.extend(evaluation.check().into_iter().map(|what| format!("{file}: {what}")));
                self.evaluations.push(evaluation);
            }
        }
        self.read_profile();
    }

    /// Optimizer steps done, from the records.
    pub(super) fn last_step(&self) -> usize {
        let (step, epoch) = (self.steps.iter().map(|it| it.step), self.epochs.iter().map(|it| it.step));
        step.chain(epoch).max().unwrap_or(0)
    }

    /// The fractional epoch after `step` steps, from the nearest record; `None` without records.
    pub(super) fn epoch_at(&self, step: usize) -> Option<f64> {
        self.steps.iter().min_by_key(|it| it.step.abs_diff(step)).map(|it| it.epoch)
    }

    /// By `section.key`.
    pub(super) fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str)
    }

    fn read_metrics(&mut self) {
        let mut log = std::mem::take(&mut self.log);
        let read = log.open(&self.directory.join(LOG)).and_then(|is_other| {
            if is_other {
                (self.steps, self.epochs, self.generations, self.start, self.replicas) = Default::default();
            }
            log.records(|record| match record {
                Record::Step(record) => self.steps.push(record),
                Record::Epoch(record) => self.epochs.push(record),
                Record::Generation(record) => self.generations.push(record),
                Record::Replicas(record) => self.replicas = Some(record),
                Record::Start(record) => self.start = Some(*record),
            })
        });
        self.notes.extend(log.notes());
        self.log = log;
        match read {
            Ok(()) if self.steps.is_empty() && self.epochs.is_empty() => {
                self.notes.push(format!("{LOG} holds no step yet"));
            }
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.notes.push(format!("there is no {LOG}: there are no curves"));
            }
            Err(error) => self.notes.push(format!("{LOG} cannot be read: {error}")),
        }
    }

    /// Reads `rank-N.jsonl` of the first processes, as far as it can be.
    fn read_others(&mut self) {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let rank = |name: &str| name.strip_prefix("rank-")?.strip_suffix(".jsonl")?.parse::<usize>().ok();
        let mut ranks: Vec<_> = entries.filter_map(|entry| rank(&entry.file_name().to_string_lossy())).collect();
        ranks.sort_unstable();
        for rank in ranks.into_iter().take(MOST_PROCESSES - 1) {
            let log = self.other_logs.entry(rank).or_default();
            let Ok(is_other) = log.open(&self.directory.join(format!("rank-{rank}.jsonl"))) else { continue };
            let steps = self.others.entry(rank).or_default();
            if is_other {
                steps.clear();
            }
            let step = |record| {
                if let Record::Step(record) = record {
                    steps.push(record)
                }
            };
            // What cannot be read of it is not shown.
            drop(log.records(step));
        }
    }

    /// Reads the summary; one that is older than the records is ignored.
    fn read_summary(&mut self) {
        let Some(value) = self.json::<Value>("summary.json") else {
            let so = "the run is still running or was killed; its numbers are from the last record";
            let note = self.lacks("summary.json", so).filter(|_| !self.is_followed);
            return self.notes.extend(note);
        };
        flatten(&mut self.environment, "", value.get("environment").unwrap_or(&Value::Null));
        match serde_json::from_value::<Summary>(value) {
            Ok(summary) if summary.steps < self.last_step() => {
                let steps = summary.steps;
                let note =
                    format!("the run continued after its summary at step {steps}; its numbers are from later records");
                self.notes.extend((!self.is_followed).then_some(note));
            }
            Ok(summary) => self.summary = Some(summary),
            Err(error) => self.notes.push(damage("summary.json", &error.to_string())),
        }
    }

    fn read_profile(&mut self) {
        let Some(trace) = self.json::<Trace>("trace.json") else { return };
        self.notes.extend(trace.is_full().then(|| "trace.json is full: it holds the first spans only".into()));
        self.phases = phases::total(&trace);
        let number = |key| self.setting(key).and_then(|text| text.parse().ok()).filter(|number: &usize| *number > 0);
        let [stages, replicas, micro_batches] =
            ["parallel.stages", "parallel.world_size", "run.accumulation_steps"].map(|key| number(key).unwrap_or(1));
        if stages > 1 {
            let ranks = 1..stages.saturating_mul(replicas);
            let others = ranks.map_while(|rank| self.json(&format!("trace-rank-{rank}.json")));
            let traces: Vec<_> = std::iter::once(trace).chain(others).collect();
            self.pipeline = Pipeline::of(&traces, [stages, replicas, micro_batches]);
        }
    }

    fn read_settings(&mut self) {
        let Some(bytes) = self.bytes("config.toml") else {
            return self.notes.extend(self.lacks("config.toml", "its settings are unknown"));
        };
        let text = String::from_utf8_lossy(&bytes);
        match toml::from_str::<Value>(&text) {
            Ok(settings) => flatten(&mut self.settings, "", &settings),
            Err(error) => self.notes.push(damage("config.toml", error.message())),
        }
    }

    fn json<T: DeserializeOwned>(&mut self, file: &str) -> Option<T> {
        let bytes = self.bytes(file)?;
        serde_json::from_slice(&bytes).map_err(|error| self.notes.push(damage(file, &error.to_string()))).ok()
    }

    /// A file's content; `None` if it does not exist, or with a note if it cannot be read.
    fn bytes(&mut self, file: &str) -> Option<Mmap> {
        // Those of other processes have the rank in their name.
        let is_of = |name: &str| file.starts_with(name.trim_end_matches(".json"));
        let limit = FILES.iter().find(|(name, _)| is_of(name)).map_or(TEXT, |(_, limit)| *limit);
        match file::map(&self.directory.join(file), limit) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                self.notes.push(format!("{file} cannot be read: {error}"));
                None
            }
        }
    }

    /// A note on a file that does not exist; an unreadable file already has a note.
    fn lacks(&self, file: &str, so: &str) -> Option<String> {
        (!self.directory.join(file).exists()).then(|| format!("there is no {file}: {so}"))
    }
}

/// The last part of the path; `.` and `..` are resolved first.
fn name(directory: &Path) -> String {
    let resolved = directory.file_name().is_none().then(|| directory.canonicalize().ok()).flatten();
    let directory = resolved.as_deref().unwrap_or(directory);
    directory.file_name().map_or_else(|| shown(directory), |name| name.to_string_lossy().into_owned())
}

fn damage(file: &str, how: &str) -> String {
    format!("{file} is damaged and not shown: {}", how.lines().next().unwrap_or_default())
}

/// Adds nested values under their key paths, as in `run.epochs`.
fn flatten(into: &mut BTreeMap<String, String>, path: &str, value: &Value) {
    match value {
        Value::Null => {}
        Value::Object(entries) => {
            for (key, value) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(into, &path, value);
            }
        }
        Value::String(text) => drop(into.insert(path.into(), text.clone())),
        other => drop(into.insert(path.into(), other.to_string())),
    }
}
