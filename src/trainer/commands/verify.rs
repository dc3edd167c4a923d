//! `train verify`: checks that a run's log and checkpoints are what its training computed.
//!
//! The log's lines must form a chain. Then the steps between two checkpoints are trained again from the first, in a
//! child process with the settings in the second, on devices of the user's choice. Losses, accuracies, rates and norms
//! must equal the log, and the weights the second checkpoint, bit for bit. If the run was resumed with other settings
//! in between, the log has the earlier settings.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use kiln_engine::checkpoint;
use kiln_system::{Error, Result, shown};
use sha2::{Digest, Sha256};

use super::compare_runs::compare;
use super::replay::{Difference, Log, Replay, Verification, different_tensor, first_difference, log};
use crate::metrics::StepRecord;
use crate::trainer::resume::saved;
use crate::trainer::terminal::say;

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
/// [`Error::Data`] naming the line or the first step that differs, [`Error::Usage`] if the run cannot be repeated bit
/// for bit.
pub fn verify(verification: &Verification) -> Result<u8> {
    let run = &verification.run;
    if let Some(other) = &verification.against {
        return compare([run, other], verification);
    }
    let log = log(&run.join("metrics.jsonl"))?;
    let all = logged(stretches(run)?, &log.steps)?;
    let chosen = chosen(all.len(), verification.stretches, verification.seed);
    let (mut repeated, total) = (0, all.iter().map(|stretch| stretch.to - stretch.from).sum::<usize>());
    for stretch in chosen.iter().map(|place| &all[*place]) {
        repeat(stretch, &log, verification)?;
        repeated += stretch.to - stretch.from;
    }
    say(&format!("verified    {repeated} of {total} steps, {} of {} stretches", chosen.len(), all.len()));
    Ok(0)
}

fn stretches(run: &Path) -> Result<Vec<Stretch>> {
    let (mut from, mut start) = (0, None);
    let mut stretches = Vec::new();
    for (to, end) in checkpoint::all(run)? {
        stretches.push(Stretch { from, start: start.replace(end.clone()), to, end });
        from = to;
    }
    let none = || Error::usage(format!("'{}' has no checkpoint to compare with; give another run", shown(run)));
    stretches.last().map(|_| ()).ok_or_else(none)?;
    Ok(stretches)
}

/// The stretches with all steps in the log: a run that began with another run's checkpoint lacks earlier steps.
fn logged(all: Vec<Stretch>, steps: &[StepRecord]) -> Result<Vec<Stretch>> {
    let known: BTreeSet<usize> = steps.iter().map(|step| step.step).collect();
    let is_logged = |stretch: &Stretch| (stretch.from + 1..=stretch.to).all(|step| known.contains(&step));
    let (logged, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_logged);
    let left_out =
        |Stretch { from, to, .. }: &Stretch| say(&format!("left out    steps {} to {to}: not in the log", from + 1));
    others.iter().for_each(left_out);
    if logged.is_empty() {
        return Err(Error::usage("the log has no steps before a checkpoint; give another run"));
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

fn repeat(stretch: &Stretch, log: &Log, verification: &Verification) -> Result<()> {
    let Stretch { from, start, to, end } = stretch;
    let origin = start.as_ref().map_or("the beginning".into(), |path| format!("'{}'", shown(path)));
    say(&format!("repeating   steps {} to {to}, from {origin}", from + 1));
    let right = checkpoint::read(end)?;
    let legs = log.legs(*from, *to, saved(&right)?);
    let replay = Replay::run(start.as_deref(), &legs, verification, &[])?;
    let logged = log.steps.iter().filter(|step| (from + 1..=*to).contains(&step.step));
    if let Some(Difference { step, number }) = first_difference(logged, &replay.steps()?) {
        let how = match number {
            None => format!("step {step} is in the log, but was not repeated"),
            Some((name, [logged, again])) => {
                format!("step {step} differs: its {name} is {logged} in the log and {again} when repeated")
            }
        };
        return Err(Error::Data(format!("{how}; the steps from {} up to it match the log", from + 1)));
    }
    if let Some(name) = different_tensor(&right, &replay.end()?)? {
        let path = shown(end);
        return Err(Error::Data(format!(
            "'{name}' in '{path}' differs from the repeated steps: the checkpoint was changed"
        )));
    }
    Ok(())
}
