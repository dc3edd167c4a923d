//! Steps of a run trained again, and its log: for commands that compare runs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use kiln_engine::checkpoint::{self, Loaded};
use kiln_engine::state::{StateDict, from_safetensors};
use kiln_system::{Error, Result, shown};
use tempfile::TempDir;

use super::measured_run::{NOTHING_ELSE, steps_of, text_of};
use crate::config::{Config, PLACEMENT_KEYS, ParallelConfig, Request, SESSION_KEYS, Saved, resolve};
use crate::metrics::{Record, StepRecord, links};
use crate::trainer::child::run;
use crate::trainer::resume::written;
use crate::trainer::terminal::say;

const WEIGHTS: &str = "model.safetensors";

pub(super) struct Log {
    pub(super) steps: Vec<StepRecord>,
    /// The steps done before each session, and its settings.
    sessions: Vec<(usize, Saved)>,
}

/// Steps that one session has done: up to the step `to`, with these settings.
pub(super) struct Leg {
    to: usize,
    settings: Saved,
}

impl Log {
    /// Splits the steps after `from` up to `to` into legs with equal settings; `last` are the settings of the last
    /// step.
    pub(super) fn legs(&self, from: usize, to: usize, last: Saved) -> Vec<Leg> {
        let mut legs = Vec::new();
        let (before, later): (Vec<_>, Vec<_>) = self.sessions.iter().partition(|(step, _)| *step <= from);
        // An earlier version has not logged them.
        let mut current = before.last().map(|(_, settings)| settings);
        for (step, settings) in later.into_iter().filter(|(step, _)| *step < to) {
            if let Some(current) = current.filter(|it| table(it).ok() != table(settings).ok()) {
                legs.push(Leg { to: *step, settings: current.clone() });
            }
            current = Some(settings);
        }
        legs.push(Leg { to, settings: last });
        legs
    }
}

/// The step after which the last of `legs` begins; the first begins after `from`.
pub(super) fn last_start(legs: &[Leg], from: usize) -> usize {
    legs.iter().rev().nth(1).map_or(from, |leg| leg.to)
}

/// Splits the last of `legs` after step `at`.
pub(super) fn divide(legs: &mut Vec<Leg>, at: usize) {
    let last = legs.last().map(|leg| Leg { to: at, settings: leg.settings.clone() });
    legs.splice(legs.len() - 1..legs.len() - 1, last);
}

/// A log whose lines form a chain.
///
/// # Errors
/// [`Error::Data`] naming the first line that does not fit.
pub(super) fn log(path: &Path) -> Result<Log> {
    let text = text_of(path)?;
    let links = links(&text);
    if let Some(line) = links.broken {
        return Err(Error::Data(format!(
            "line {line} of '{}' does not follow from the one before: the log was changed there; earlier steps are \
             unchanged",
            shown(path)
        )));
    }
    let old = match links.without {
        0 => String::new(),
        count => format!("; the first {count} are of an earlier version, without a chain"),
    };
    say(&format!("log         {} lines, each follows from the one before{old}", links.whole));
    let session = |line| match serde_json::from_str(line) {
        Ok(Record::Start(it)) => Some((it.step, written(path.to_path_buf(), it.settings))),
        _ => None,
    };
    Ok(Log { steps: steps_of(&text), sessions: text.lines().filter_map(session).collect() })
}

/// Which part of a run is repeated, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    pub run: PathBuf,
    /// Stretches between checkpoints to repeat; 0 for all.
    pub stretches: usize,
    /// Chooses them; `None` chooses others each time.
    pub seed: Option<u64>,
    /// Another run of the same experiment, to compare with.
    pub against: Option<PathBuf>,
    /// Placement and backend of the replay, as arguments of `train`.
    pub arguments: Vec<OsString>,
    pub request: Request,
}

/// Steps of a run that were trained again.
pub(super) struct Replay {
    directory: TempDir,
    to: usize,
    before: Vec<StepRecord>,
}

impl Replay {
    /// Trains `legs` one after the other from the checkpoint `start`, or the beginning, with the arguments of
    /// `verification` and, for the last leg, `own`. Writes only to temporary directories.
    pub(super) fn run(start: Option<&Path>, legs: &[Leg], verification: &Verification, own: &[&str]) -> Result<Self> {
        let mut before: Option<Self> = None;
        for (at, leg) in legs.iter().enumerate() {
            let own = if at + 1 == legs.len() { own } else { &[] };
            let from = before.as_ref().map(Self::saved).transpose()?;
            let forced = &["checkpoint.force_config=true"][..from.iter().len()];
            let done = Self::leg(from.as_deref().or(start), leg, verification, &[own, forced].concat())?;
            before = Some(Self { before: before.map_or(Ok(Vec::new()), |it| it.steps())?, ..done });
        }
        Ok(before.expect("steps end somewhere"))
    }

    fn leg(
        start: Option<&Path>,
        Leg { to, settings }: &Leg,
        verification: &Verification,
        own: &[&str],
    ) -> Result<Self> {
        let mut experiment = experiment(settings)?;
        placed(&mut experiment, &resolved(settings, &verification.request)?.parallel);
        let directory = tempfile::tempdir().map_err(Error::io("create", std::env::temp_dir()))?;
        let it = Self { directory, to: *to, before: Vec::new() };
        let file = it.directory.path().join("config.toml");
        fs::write(&file, experiment.to_string()).map_err(Error::io("write", &file))?;
        let mut all: Vec<OsString> = vec!["data.cache_dir=".into()];
        all.extend_from_slice(&verification.arguments);
        all.extend(own.iter().map(OsString::from));
        let last = [
            format!("--config={}", file.display()),
            format!("--output-dir={}", it.path().display()),
            format!("--max-steps={to}"),
            "--checkpoint-every=never".into(),
            "--progress=none".into(),
        ];
        all.extend(last.map(OsString::from));
        all.extend(NOTHING_ELSE.map(OsString::from));
        all.extend(start.map(|path| format!("--resume={}", path.display()).into()));
        let ended = run(all, true)?;
        if ended.code != 0 {
            return Err(Error::Training(format!("the steps to {to} cannot be repeated: {}", ended.why())));
        }
        Ok(it)
    }

    /// The directory of the run, until this is dropped.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    pub(super) fn steps(&self) -> Result<Vec<StepRecord>> {
        let own = steps_of(&text_of(&self.path().join("metrics.jsonl"))?);
        Ok([&self.before[..], &own].concat())
    }

    /// The directory of the checkpoint at its end.
    fn saved(&self) -> Result<PathBuf> {
        let unsaved = || Error::Training(format!("repeating the steps to {} wrote no checkpoint; try again", self.to));
        let (_, path) =
            checkpoint::all(&self.path())?.into_iter().find(|(step, _)| *step == self.to).ok_or_else(unsaved)?;
        Ok(path)
    }

    pub(super) fn end(&self) -> Result<Loaded> {
        checkpoint::read(&self.saved()?)
    }
}

/// What a resumed run would make of `settings`. It refuses what that would refuse, as an address that the user has not
/// given: the child gets them in a file of this command.
fn resolved(settings: &Saved, request: &Request) -> Result<Config> {
    let without = &["checkpoint.url", "checkpoint.path", "data.cache_dir"];
    let saved = Some(Saved { without, ..settings.clone() });
    Ok(resolve(&Request { saved, ..request.clone() })?.config)
}

/// Gives `experiment` the devices and stages that a resumed run would have.
fn placed(experiment: &mut toml::Table, chosen: &ParallelConfig) {
    let chosen = toml::Table::try_from(chosen).expect("plain TOML values");
    let all = experiment.entry("parallel").or_insert_with(|| toml::Table::new().into());
    for key in PLACEMENT_KEYS.iter().filter_map(|key| key.strip_prefix("parallel.")) {
        all.as_table_mut().zip(chosen.get(key)).map(|(all, value)| all.insert(key.into(), value.clone()));
    }
}

/// The settings of a run, except settings of its session, processes and files.
///
/// # Errors
/// [`Error::Usage`] if sums depended on the number of processes.
pub(super) fn experiment(settings: &Saved) -> Result<toml::Table> {
    let config: Config = toml::from_str(&settings.whole()).map_err(damaged(settings))?;
    let parallel = &config.parallel;
    if (parallel.processes() > 1 || parallel.elastic.is_on()) && !config.run.deterministic {
        return Err(Error::usage(
            "the run had several processes without --deterministic, so its sums depend on their number; only a \
             deterministic run can be verified",
        ));
    }
    table(settings)
}

fn damaged(settings: &Saved) -> impl Fn(toml::de::Error) -> Error + '_ {
    |reason| Error::Checkpoint(format!("'{}' is damaged: {}", shown(&settings.path), reason.message()))
}

fn table(settings: &Saved) -> Result<toml::Table> {
    let mut settings: toml::Table = toml::from_str(&settings.whole()).map_err(damaged(settings))?;
    settings.remove("checkpoint");
    let others = SESSION_KEYS.iter().chain(&PLACEMENT_KEYS);
    for (section, key) in others.filter_map(|key| key.split_once('.')) {
        settings.get_mut(section).and_then(toml::Value::as_table_mut).map(|section| section.remove(key));
    }
    Ok(settings)
}

/// A step that two logs do not have alike.
pub(super) struct Difference {
    pub(super) step: usize,
    /// The number that differs, with both values; `None` if the second log does not have the step.
    pub(super) number: Option<(&'static str, [f64; 2])>,
}

/// The first of `steps` that differs from the same one among `others`.
pub(super) fn first_difference<'a>(
    steps: impl IntoIterator<Item = &'a StepRecord>,
    others: &[StepRecord],
) -> Option<Difference> {
    let values = |step: &StepRecord| {
        [("loss", step.loss), ("accuracy", step.accuracy), ("rate", step.lr), ("gradient norm", step.grad_norm)]
    };
    let others: BTreeMap<usize, &StepRecord> = others.iter().map(|step| (step.step, step)).collect();
    steps.into_iter().find_map(|step| {
        let Some(other) = others.get(&step.step) else { return Some(Difference { step: step.step, number: None }) };
        let mut pairs = values(step).into_iter().zip(values(other));
        let ((name, one), (_, other)) = pairs.find(|((_, one), (_, other))| one.to_bits() != other.to_bits())?;
        Some(Difference { step: step.step, number: Some((name, [one, other])) })
    })
}

/// The first tensor of the weights that differs.
pub(super) fn different_tensor(one: &Loaded, other: &Loaded) -> Result<Option<String>> {
    let weights = |loaded: &Loaded| -> Result<StateDict> {
        let bytes = loaded.files.get(WEIGHTS).map(Vec::as_slice).unwrap_or_default();
        Ok(from_safetensors(bytes, &loaded.path.join(WEIGHTS))?.0)
    };
    let (one, other) = (weights(one)?, weights(other)?);
    Ok(one.iter().find(|(name, tensor)| other.get(*name) != Some(tensor)).map(|(name, _)| name.clone()))
}
