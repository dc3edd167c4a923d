//! `train sweep`: the runs of a grid or of a random sample, each in its own process, one or several at a time.
//!
//! All runs are checked before the first one starts. Complete runs are skipped and interrupted ones resumed, so the
//! same command continues a sweep. With halving, a run pauses at a checkpoint and continues from there if it is among
//! the best. `trial.rs` is a run, `results.rs` compares them.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use kiln_engine::checkpoint::{CheckpointConfig, Resume};
use kiln_system::{Error, Result, shown};
use parking_lot::Mutex;

use super::sweep_dir;
use super::trial::Trial;
use crate::config::grid::Point;
use crate::config::{Config, resolve};
use crate::report::results::percent;
use crate::study::halving::{Rung, best, rungs};
use crate::trainer::results::{Ending, Results};
use crate::trainer::terminal::say;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepOptions {
    /// The factor of successive halving, if runs are stopped early.
    pub halving: Option<usize>,
    pub jobs: usize,
    /// The devices of all runs together; if empty, every run uses its own setting.
    pub devices: Vec<usize>,
}

/// Runs the rest of the sweep in `directory`; returns the exit code: 0, or 1 if a run failed.
pub fn sweep(directory: Option<PathBuf>, points: &[Point], options: &SweepOptions) -> Result<u8> {
    let configs = check(points, options)?;
    let is_dry = configs.iter().all(|config| config.run.dry_run);
    let directory = &sweep_dir::of(directory, points, is_dry)?;
    let _alone = if is_dry { None } else { Some(sweep_dir::claim(directory)?) };
    say(&format!("sweep       {} runs in '{}'", points.len(), shown(directory)));
    let trial = |(point, config): (_, Config)| {
        let epochs = if config.run.stop_after == 0 { config.run.epochs } else { config.run.stop_after };
        let epochs = epochs.min(config.run.epochs);
        Trial { point, config, epochs, directory: directory.join(&point.name), ending: Ending::default() }
    };
    let mut trials: Vec<Trial> = points.iter().zip::<Vec<Config>>(configs).map(trial).collect();
    refuse_others(&trials)?;
    if !is_dry {
        sweep_dir::describe(directory, points)?;
    }
    let shortest = trials.iter().map(|trial| trial.epochs).min().unwrap_or(1);
    let mut rungs = rungs(trials.len(), shortest, options.halving);
    rungs.truncate(if is_dry { 1 } else { rungs.len() });
    let mut left: Vec<usize> = (0..trials.len()).collect();
    for (nth, rung) in rungs.iter().enumerate() {
        if nth > 0 {
            left = survivors(&mut trials, &left, rungs[nth - 1], rung.points);
        }
        train_all(&mut trials, &left, *rung, options).inspect_err(|error| {
            if matches!(error, Error::Stopped(_)) {
                say("\nstopped; the same command continues with the remaining runs");
            }
        })?;
    }
    let mut results = Results::default();
    trials.into_iter().for_each(|trial| results.add(trial.point, trial.directory, trial.ending));
    if !is_dry {
        results.write(directory)?;
        say(&format!("\n{}", results.table()));
    }
    Ok(u8::from(results.any_failed()))
}

/// Trains the runs `left` as far as `rung` goes, and notes failures.
fn train_all(trials: &mut [Trial], left: &[usize], rung: Rung, options: &SweepOptions) -> Result<()> {
    let (next, jobs) = (AtomicUsize::new(0), options.jobs.min(left.len()));
    let failures = Mutex::new(Vec::new());
    let (start, trained) = (Instant::now(), AtomicUsize::new(0));
    // The runs before that were complete took no time.
    let eta = |remaining: usize| match trained.load(Ordering::Relaxed) {
        0 => None,
        trained => Some(start.elapsed().as_secs_f64() / trained as f64 * remaining as f64),
    };
    // After a stop, or an error of this program, no worker begins another run.
    let halt = || next.store(left.len(), Ordering::Relaxed);
    let take = || {
        let nth = next.fetch_add(1, Ordering::Relaxed);
        Some((nth, *left.get(nth)?))
    };
    let work = &|slot: usize| {
        while let Some((nth, at)) = take() {
            let number = format!("{}/{}", nth + 1, left.len());
            let place = trials[at].place(&options.devices, slot, jobs);
            let eta = eta(left.len() - nth);
            let ended = trials[at].train(&number, rung, place, eta, jobs == 1).inspect_err(|_| halt())?;
            let Some(ended) = ended else { continue };
            trained.fetch_add(1, Ordering::Relaxed);
            if ended.code != 0 {
                failures.lock().push((at, ended.code));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|slot| scope.spawn(move || work(slot))).collect();
        let join = |worker: ScopedJoinHandle<Result<()>>| worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        workers.into_iter().map(join).collect::<Vec<_>>().into_iter().collect::<Result<()>>()
    })?;
    for (at, code) in std::mem::take(&mut *failures.lock()) {
        trials[at].ending.failure = Some(code);
    }
    Ok(())
}

/// The `count` best of the runs `left` after `rung`; the others pause for good.
fn survivors(trials: &mut [Trial], left: &[usize], rung: Rung, count: usize) -> Vec<usize> {
    let accuracies: Vec<_> = left.iter().map(|at| trials[*at].accuracy(rung)).collect();
    let places = best(&accuracies, count);
    let least = places.iter().filter_map(|place| accuracies[*place]).reduce(f64::min);
    let about = least.map(|least| format!(", each with at least {}", percent(least))).unwrap_or_default();
    say(&format!("\nhalving     {} of {} runs continue{about}", places.len(), left.len()));
    let chosen: Vec<usize> = places.into_iter().map(|place| left[place]).collect();
    left.iter().filter(|at| !chosen.contains(at)).for_each(|at| trials[*at].ending.is_paused = true);
    chosen
}

/// Refuses runs of another experiment in the directory: their results would be mixed with the new ones.
fn refuse_others(trials: &[Trial]) -> Result<()> {
    let mut others = trials.iter().filter_map(Trial::other_settings);
    let Some(first) = others.next() else { return Ok(()) };
    let more = match others.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let remedy = "give another --output-dir, or its own settings";
    Err(Error::usage(format!("{first}{more}; {remedy}")))
}

/// The configurations of all runs, or all errors in any of them, each once.
fn check(points: &[Point], options: &SweepOptions) -> Result<Vec<Config>> {
    let (mut configs, mut lines) = (Vec::new(), Vec::new());
    for point in points {
        match resolve(&point.request) {
            Ok(resolved) => configs.push(resolved.config),
            Err(Error::Usage(complaints)) => lines.extend(complaints),
            Err(other) => return Err(other),
        }
    }
    lines.extend(configs.iter().flat_map(misplaced).map(String::from));
    if !options.devices.is_empty() && points.iter().any(|point| point.request.names("parallel.gpu_ids")) {
        lines.push("--gpu-ids is given twice (sweep and run); give it once, before the --".into());
    }
    if lines.is_empty() {
        lines.extend(twins(points, &configs));
    }
    let mut seen = BTreeSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    if lines.is_empty() { Ok(configs) } else { Err(Error::Usage(lines)) }
}

/// Refuses settings that a run of a sweep cannot have.
fn misplaced(config: &Config) -> impl Iterator<Item = &'static str> + use<> {
    let parallel = &config.parallel;
    let rules = [
        (
            config.run.output_dir.as_os_str().is_empty(),
            "a sweep chooses the output dir of each run; give --output-dir DIR for the sweep, before the --",
        ),
        (
            config.checkpoint.resume == Resume::Off,
            "a sweep resumes interrupted runs by itself; remove --resume and give the same --output-dir again",
        ),
        (
            parallel.processes() == 1 && !parallel.elastic.is_on(),
            "a run of a sweep must be one process; remove --nnodes, --rank, --elastic and the launcher",
        ),
    ];
    rules.into_iter().filter(|(holds, _)| !holds).map(|(_, line)| line)
}

/// Refuses runs that share a directory, a file or a place for copies, or are the same.
fn twins(points: &[Point], configs: &[Config]) -> Vec<String> {
    let (mut names, mut places, mut texts) = (BTreeSet::new(), BTreeSet::<&PathBuf>::new(), BTreeSet::new());
    let mut lines = Vec::new();
    for (point, config) in points.iter().zip(configs) {
        let (name, CheckpointConfig { path, url, .. }) = (&point.name, &config.checkpoint);
        if !names.insert(name) {
            lines.push(format!("two runs would have the name '{name}'; give values that differ in more than slashes"));
        } else if !texts.insert(config.to_toml()) {
            let remedy = "remove the flag or variable that sets the swept key: it overrides the sweep's values";
            lines.push(format!("the run '{name}' has the same settings as another one; {remedy}"));
        }
        for (place, what, flag) in
            [(path, "write its best model", "--checkpoint"), (url, "copy its checkpoints", "--checkpoint-url")]
        {
            if !place.as_os_str().is_empty() && !places.insert(place) {
                lines.push(format!("every run would {what} to '{}'; remove {flag}", shown(place)));
            }
        }
    }
    lines
}
