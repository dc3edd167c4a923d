//! `train verify A --against B`: finds where two runs of one experiment first differ.
//!
//! Logs and checkpoints show the step. Both runs then train the steps before it again, each with its own settings, and
//! log what every unit of the model computes: the first difference has a step, a replica, a part of the model and a
//! direction. Without a difference, the log or a checkpoint of one run does not match its own steps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kiln_engine::checkpoint::{self, Loaded};
use kiln_engine::parallel::{Observation, first_difference as first_unit};
use kiln_system::{Error, Result, shown};

use super::measured_run::text_of;
use super::replay::{
    Difference, Log, Replay, Verification, different_tensor, divide, experiment, first_difference, last_start, log,
};
use crate::trainer::resume::saved;
use crate::trainer::terminal::say;

/// Where both runs are still the same, and the step by which they are not.
struct Parting {
    /// The step and the two checkpoints from which both runs are repeated; `None` for the beginning.
    start: Option<(usize, [PathBuf; 2])>,
    /// The first step known to differ.
    step: usize,
    how: String,
}

/// Compares two runs; returns the exit code.
///
/// # Errors
/// [`Error::Data`] that says where they differ, [`Error::Usage`] if they cannot be compared.
pub(super) fn compare(runs: [&Path; 2], verification: &Verification) -> Result<u8> {
    let logs = [log(&runs[0].join("metrics.jsonl"))?, log(&runs[1].join("metrics.jsonl"))?];
    let kept = [checkpoints(runs[0])?, checkpoints(runs[1])?];
    let Some(Parting { start, step, how }) = parting(&logs, &kept)? else {
        let steps = logs[0].steps.len().min(logs[1].steps.len());
        say(&format!("equal       {steps} steps, and the weights in all common checkpoints"));
        return Ok(0);
    };
    say(&format!("differ      at step {step}: {how}"));
    let origin = start.as_ref().map_or("the beginning".into(), |(_, [path, _])| format!("'{}'", shown(path)));
    say(&format!("repeating   both to step {step}, from {origin}"));
    let from = start.as_ref().map_or(0, |(from, _)| *from);
    let (mut legs, mut settings) = (Vec::new(), Vec::new());
    for ((run, kept), log) in runs.into_iter().zip(&kept).zip(&logs) {
        let path = kept.range(step..).next().or(kept.last_key_value());
        let none = || Error::usage(format!("'{}' has no checkpoint with its settings", shown(run)));
        let checkpoint = checkpoint::read(path.ok_or_else(none)?.1)?;
        legs.push(log.legs(from, step, saved(&checkpoint)?));
        settings.push(checkpoint);
    }
    // Units are compared in the last legs, which must have the same steps.
    let starts = [last_start(&legs[0], from), last_start(&legs[1], from)];
    let latest = starts[0].max(starts[1]);
    for (legs, _) in legs.iter_mut().zip(starts).filter(|(_, start)| *start < latest) {
        divide(legs, latest);
    }
    let mut repeated = Vec::new();
    for (place, (legs, settings)) in legs.iter().zip(settings).enumerate() {
        let start = start.as_ref().map(|(_, paths)| paths[place].as_path());
        // A run may have gone on from a checkpoint with other settings.
        let own = &["run.log_units=true", "--force-config"][..if start.is_some() { 2 } else { 1 }];
        repeated.push((Replay::run(start, legs, verification, own)?, settings));
    }
    let [one, other] = [&repeated[0], &repeated[1]];
    let settings = different_settings(&one.1, &other.1)?;
    if let Some(difference) = first_unit(&units(&one.0)?, &units(&other.0)?) {
        return Err(Error::Data(format!("the runs first differ at {difference}{settings}")));
    }
    for ((run, log), (replay, _)) in runs.iter().zip(&logs).zip(&repeated) {
        let steps = replay.steps()?;
        let repeated: BTreeSet<usize> = steps.iter().map(|step| step.step).collect();
        let logged = log.steps.iter().filter(|step| repeated.contains(&step.step));
        if let Some(Difference { step, .. }) = first_difference(logged, &steps) {
            return Err(Error::Data(format!(
                "both runs compute the same here, but step {step} in the log of '{}' differs: the log was changed, or \
                 a device failed",
                shown(run)
            )));
        }
    }
    Err(Error::Data(format!("both runs compute the same here, but their checkpoints differ: {how}{settings}")))
}

fn checkpoints(run: &Path) -> Result<BTreeMap<usize, PathBuf>> {
    Ok(checkpoint::all(run)?.into_iter().collect())
}

/// Where two runs first differ; `None` if everything that both have is equal.
///
/// # Errors
/// [`Error::Usage`] if nothing leads to the steps that both have logged.
fn parting(logs: &[Log; 2], saved: &[BTreeMap<usize, PathBuf>; 2]) -> Result<Option<Parting>> {
    let logs = [&logs[0].steps, &logs[1].steps];
    let others: BTreeSet<usize> = logs[1].iter().map(|step| step.step).collect();
    let both: Vec<_> = logs[0].iter().filter(|step| others.contains(&step.step)).collect();
    let apart = || {
        let rule = "the runs have no common logged steps after a checkpoint or from the beginning";
        Error::usage(format!("{rule}; give runs of one experiment"))
    };
    let first = both.first().ok_or_else(apart)?.step;
    let logged = first_difference(both, logs[1]).and_then(|difference| {
        let (name, [one, other]) = difference.number?;
        Some((difference.step, format!("the {name} is {one} in the first and {other} in the second")))
    });
    let most = logged.as_ref().map_or(usize::MAX, |(step, _)| *step);
    let (mut start, mut is_reached) = (None, first == 1);
    let steps: BTreeSet<usize> = saved.iter().flat_map(BTreeMap::keys).copied().filter(|step| *step < most).collect();
    let mut found = logged;
    for step in steps {
        let [one, other] = [saved[0].get(&step), saved[1].get(&step)];
        if let (Some(one), Some(other)) = (one, other)
            && let Some(name) = different_tensor(&checkpoint::read(one)?, &checkpoint::read(other)?)?
        {
            found = Some((step, format!("'{name}' in their checkpoints differs")));
            break;
        }
        // If only one run has a checkpoint here, it serves both: up to here they are equal, or one was resumed from the
        // other.
        if let Some(either) = one.or(other).filter(|_| step + 1 >= first) {
            let paths = [one.unwrap_or(either), other.unwrap_or(either)].map(PathBuf::clone);
            (start, is_reached) = (Some((step, paths)), true);
        }
    }
    match found {
        Some(_) if !is_reached => Err(apart()),
        found => Ok(found.map(|(step, how)| Parting { start, step, how })),
    }
}

fn units(replay: &Replay) -> Result<Vec<Observation>> {
    let path = replay.path().join("units.jsonl");
    let damaged = |reason| Error::Training(format!("'{}' cannot be read: {reason}; try again", shown(&path)));
    let mut all = text_of(&path)?.lines().map(serde_json::from_str).collect::<std::result::Result<Vec<_>, _>>();
    if let Ok(all) = &mut all {
        all.sort_by_key(Observation::order);
    }
    all.map_err(damaged)
}

/// The settings in which two experiments differ, in words.
fn different_settings(one: &Loaded, other: &Loaded) -> Result<String> {
    let (one, other) = (experiment(&saved(one)?)?, experiment(&saved(other)?)?);
    let of = |table: &toml::Table, section: &str, key: &str| table.get(section).and_then(|it| it.get(key)).cloned();
    let sections = one.iter().filter_map(|(section, keys)| Some((section, keys.as_table()?)));
    let keys = sections.flat_map(|(section, keys)| keys.keys().map(move |key| (section, key)));
    let different = keys.filter(|(section, key)| of(&one, section, key) != of(&other, section, key));
    let names: Vec<String> = different.map(|(section, key)| format!("{section}.{key}")).collect();
    Ok(if names.is_empty() { String::new() } else { format!("; their settings differ in {}", names.join(", ")) })
}
