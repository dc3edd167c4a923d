//! `train verify`: whether a run's log and checkpoints are what its training computed.
//!
//! The log's lines must form their chain. Then steps between two checkpoints are trained again from the first, in a
//! child process with the settings in the second, on devices of the user's choice: losses, accuracies, rates and norms
//! must be those of the log, and the weights those of the second checkpoint, bit for bit.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::checkpoint::{self, Loaded};
use crate::config::{Config, SESSION_KEYS};
use crate::error::{Error, Result};
use crate::file::{self, GIB};
use crate::metrics::{Record, StepRecord, links};
use crate::state::{StateDict, from_safetensors};
use crate::trainer::child::Child;
use crate::trainer::origin::saved;
use crate::trainer::terminal::say;

/// The file of the weights in a checkpoint.
const WEIGHTS: &str = "model.safetensors";

/// Which part of a run is repeated, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// The run's directory.
    pub run: PathBuf,
    /// Stretches between checkpoints to repeat; 0 for all.
    pub stretches: usize,
    /// Chooses them; `None` chooses others each time.
    pub seed: Option<u64>,
    /// Placement and backend of the repetition, as arguments of `train`.
    pub arguments: Vec<String>,
}

/// The steps from one checkpoint, or the beginning, to the next one.
struct Stretch {
    from: usize,
    start: Option<PathBuf>,
    to: usize,
    end: PathBuf,
}

/// Verifies a run and returns the exit code.
///
/// # Errors
/// [`Error::Data`] naming the line or the first step that differs, [`Error::Usage`] if the run cannot be repeated bit for
/// bit.
pub fn verify(verification: &Verification) -> Result<u8> {
    let run = &verification.run;
    let steps = log(&run.join("metrics.jsonl"))?;
    let all = logged(stretches(run)?, &steps)?;
    let chosen = chosen(all.len(), verification.stretches, verification.seed);
    let (mut repeated, total) = (0, all.iter().map(|stretch| stretch.to - stretch.from).sum::<usize>());
    for stretch in chosen.iter().map(|place| &all[*place]) {
        let logged: Vec<_> = steps.iter().filter(|step| (stretch.from + 1..=stretch.to).contains(&step.step)).collect();
        if let Some(code) = repeat(stretch, &logged, &verification.arguments)? {
            return Ok(code);
        }
        repeated += stretch.to - stretch.from;
    }
    say(&format!("verified    {repeated} of {total} steps, {} of {} stretches", chosen.len(), all.len()));
    Ok(0)
}

/// The steps in a log whose lines form a chain.
fn log(path: &Path) -> Result<Vec<StepRecord>> {
    let text = text_of(path)?;
    let links = links(&text);
    if let Some(line) = links.broken {
        return Err(Error::Data(format!(
            "line {line} of '{}' does not follow from the one before: the log was changed there; steps before it are as \
             they were written",
            path.display()
        )));
    }
    let old = match links.without {
        0 => String::new(),
        count => format!("; the first {count} are of an earlier version, without a chain"),
    };
    say(&format!("log         {} lines, each follows from the one before{old}", links.whole));
    Ok(steps_of(&text))
}

fn text_of(log: &Path) -> Result<String> {
    file::text(log, 4 * GIB).map_err(Error::io("read", log))
}

fn steps_of(log: &str) -> Vec<StepRecord> {
    let step = |line| if let Ok(Record::Step(step)) = serde_json::from_str(line) { Some(step) } else { None };
    log.lines().filter_map(step).collect()
}

fn stretches(run: &Path) -> Result<Vec<Stretch>> {
    let (mut from, mut start) = (0, None);
    let mut stretches = Vec::new();
    for (to, end) in checkpoint::all(run)? {
        stretches.push(Stretch { from, start: start.replace(end.clone()), to, end });
        from = to;
    }
    let none = || Error::usage(format!("'{}' has no checkpoint to compare with; give another run", run.display()));
    stretches.last().map(|_| ()).ok_or_else(none)?;
    Ok(stretches)
}

/// The stretches with all steps in the log: a run that goes on from another run's checkpoint lacks those before.
fn logged(all: Vec<Stretch>, steps: &[StepRecord]) -> Result<Vec<Stretch>> {
    let known: BTreeSet<usize> = steps.iter().map(|step| step.step).collect();
    let is_logged = |stretch: &Stretch| (stretch.from + 1..=stretch.to).all(|step| known.contains(&step));
    let (logged, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_logged);
    let left_out =
        |Stretch { from, to, .. }: &Stretch| say(&format!("left out    steps {} to {to}: not in the log", from + 1));
    others.iter().for_each(left_out);
    if logged.is_empty() {
        return Err(Error::usage("the log holds none of the steps before a checkpoint; give another run"));
    }
    Ok(logged)
}

/// Which of `count` stretches are repeated, ascending.
fn chosen(count: usize, wanted: usize, seed: Option<u64>) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    if wanted > 0 && wanted < count {
        // Each hasher of the standard library has keys of its own.
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
        places.sort_by_cached_key(|place| Sha256::digest(format!("{seed} {place}")));
        places.truncate(wanted);
        places.sort_unstable();
    }
    places
}

/// Repeats a stretch; the exit code if a signal ended that.
fn repeat(stretch: &Stretch, logged: &[&StepRecord], arguments: &[String]) -> Result<Option<u8>> {
    let Stretch { from, start, to, end } = stretch;
    let steps = format!("steps {} to {to}", from + 1);
    let origin = start.as_ref().map_or("the beginning".into(), |path| format!("'{}'", path.display()));
    say(&format!("repeating   {steps}, from {origin}"));
    let right = checkpoint::read(end)?;
    let directory = tempfile::tempdir().map_err(Error::io("create", std::env::temp_dir()))?;
    let [settings, output] = ["config.toml", "run"].map(|name| directory.path().join(name));
    fs::write(&settings, experiment(&right)?).map_err(Error::io("write", &settings))?;
    let mut own = vec![
        format!("--config={}", settings.display()),
        format!("--output-dir={}", output.display()),
        format!("--max-steps={to}"),
        "--checkpoint-every=never".into(),
        "--progress=none".into(),
    ];
    own.extend(start.as_ref().map(|path| format!("--resume={}", path.display())));
    let ended = Child::new([arguments, &own].concat()).run(true)?;
    if ended.stop.is_some() {
        return Ok(ended.stop);
    }
    if ended.code != 0 {
        let why = ended.error_line.unwrap_or_else(|| format!("exit code {}", ended.code));
        return Err(Error::Training(format!("{steps} cannot be repeated: {}", why.trim_start_matches("train: "))));
    }
    let again = steps_of(&text_of(&output.join("metrics.jsonl"))?);
    if let Some(difference) = first_difference(logged, &again) {
        return Err(Error::Data(format!("{difference}; the steps from {} to it are as logged", from + 1)));
    }
    let unsaved = || Error::Training(format!("{steps} were repeated without a checkpoint at their end; verify again"));
    let repeated = checkpoint::all(&output)?.into_iter().find(|(step, _)| step == to).ok_or_else(unsaved)?;
    if let Some(name) = different_tensor(&right, &checkpoint::read(&repeated.1)?)? {
        let path = end.display();
        return Err(Error::Data(format!(
            "'{name}' in '{path}' is not what its steps compute: the checkpoint was changed"
        )));
    }
    Ok(None)
}

/// The settings of a checkpoint without those of its session, processes and files.
///
/// # Errors
/// [`Error::Usage`] if sums depended on the number of processes.
fn experiment(checkpoint: &Loaded) -> Result<String> {
    let text = saved(checkpoint)?.text;
    let damaged =
        |reason: toml::de::Error| Error::Checkpoint(format!("its config.toml is damaged: {}", reason.message()));
    let config: Config = toml::from_str(&text).map_err(damaged)?;
    let parallel = &config.parallel;
    if (parallel.processes() > 1 || parallel.elastic.is_on()) && !config.run.deterministic {
        return Err(Error::usage(
            "several processes made this run without --deterministic, so that its sums depend on their number; only a \
             deterministic run can be verified",
        ));
    }
    let mut settings: toml::Table = toml::from_str(&text).map_err(damaged)?;
    settings.remove("checkpoint");
    for (section, key) in SESSION_KEYS.iter().filter_map(|key| key.split_once('.')) {
        settings.get_mut(section).and_then(toml::Value::as_table_mut).map(|section| section.remove(key));
    }
    Ok(settings.to_string())
}

/// The first step that differs, with what does.
fn first_difference(logged: &[&StepRecord], again: &[StepRecord]) -> Option<String> {
    let values = |step: &StepRecord| {
        [("loss", step.loss), ("accuracy", step.accuracy), ("rate", step.lr), ("gradient norm", step.grad_norm)]
    };
    let of = |number: usize| again.iter().find(|step| step.step == number);
    logged.iter().find_map(|step| {
        let number = step.step;
        let Some(repeated) = of(number) else { return Some(format!("step {number} was logged, but not repeated")) };
        let pairs = values(step).into_iter().zip(values(repeated));
        let mut different = pairs.filter(|((_, logged), (_, again))| logged.to_bits() != again.to_bits());
        let ((name, logged), (_, again)) = different.next()?;
        Some(format!("step {number} differs: its {name} is {logged} in the log and {again} if it is repeated"))
    })
}

/// The first tensor of the weights that differs.
fn different_tensor(one: &Loaded, other: &Loaded) -> Result<Option<String>> {
    let weights = |loaded: &Loaded| -> Result<StateDict> {
        let bytes = loaded.files.get(WEIGHTS).map(Vec::as_slice).unwrap_or_default();
        Ok(from_safetensors(bytes, &loaded.path.join(WEIGHTS))?.0)
    };
    let (one, other) = (weights(one)?, weights(other)?);
    Ok(one.iter().find(|(name, tensor)| other.get(*name) != Some(tensor)).map(|(name, _)| name.clone()))
}
