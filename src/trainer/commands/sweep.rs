//! `train sweep`: the runs of a grid, one after another, each in its own process.
//!
//! All runs are checked before the first one starts. Complete runs are skipped and interrupted ones resumed, so the
//! same command continues a sweep. `results.rs` compares the runs.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use crate::checkpoint::{Resume, check_writable, run_dir};
use crate::config::grid::Point;
use crate::config::{Config, resolve};
use crate::error::{Error, Result};
use crate::file::{self, TEXT};
use crate::report::Run;
use crate::trainer::child::{Child, Ended};
use crate::trainer::results::Results;
use crate::trainer::terminal::{say, warn};

/// The progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    /// It has a checkpoint to continue from.
    Begun,
    Complete,
}

/// Runs the rest of the grid in `directory`; returns the exit code: 0, 1 if a run failed, or that of the signal that
/// ended the sweep.
pub fn sweep(directory: &Path, points: &[Point]) -> Result<u8> {
    let configs = check(points)?;
    std::fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
    check_writable(&directory.join("sweep.csv"))?;
    let _alone = claim(directory)?;
    say(&format!("sweep       {} runs in '{}'", points.len(), directory.display()));
    let mut results = Results::default();
    for (at, (point, config)) in points.iter().zip(&configs).enumerate() {
        let run = directory.join(&point.name);
        let state = state(&run, config);
        let about = match state {
            State::New => "",
            State::Begun => "  goes on",
            State::Complete => "  is complete",
        };
        say(&format!("\nrun {:<8}{}{about}", format!("{}/{}", at + 1, points.len()), point.name));
        let ended = if state == State::Complete { None } else { Some(train(point, &run, state)?) };
        if let Some(Ended { stop: Some(code), .. }) = ended {
            say("\nstopped; the same command goes on with what is left");
            return Ok(code);
        }
        let failure = ended.filter(|ended| ended.code != 0);
        if let Some(Ended { code, .. }) = &failure {
            warn(&format!("run '{}' failed with exit code {code}; the sweep goes on", point.name));
        }
        results.add(point, run, failure.map(|ended| ended.code));
    }
    results.write(directory)?;
    say(&format!("\n{}", results.table()));
    Ok(u8::from(results.any_failed()))
}

/// Locks the directory, since two sweeps at once would train the same runs. The lock ends with the process.
fn claim(directory: &Path) -> Result<File> {
    let handle = File::open(directory).map_err(Error::io("open", directory))?;
    match handle.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let remedy = "wait for its end, or give another --output-dir";
            Err(Error::usage(format!("another sweep is at work in '{}'; {remedy}", directory.display())))
        }
        // Works without a lock on file systems that have none.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(handle),
    }
}

/// Trains one run until it ends.
fn train(point: &Point, run: &Path, state: State) -> Result<Ended> {
    let mut arguments = point.arguments.clone();
    let mut directory = std::ffi::OsString::from("--output-dir=");
    directory.push(run);
    arguments.push(directory);
    if state == State::Begun {
        arguments.push("--resume=latest".into());
    }
    Child::new(arguments).run(false)
}

/// The progress of the run in a directory; a run with other settings is not complete.
fn state(run: &Path, config: &Config) -> State {
    let saved = file::text(&run.join("config.toml"), TEXT).ok();
    let saved: Option<Config> = saved.and_then(|text| toml::from_str(&text).ok());
    let is_same = saved.is_some_and(|saved| saved.shared() == config.shared());
    let is_complete = || Run::read(run).ok().and_then(|run| run.summary).is_some_and(|summary| summary.complete);
    match () {
        () if is_same && is_complete() => State::Complete,
        () if run_dir::is_begun(run) => State::Begun,
        () => State::New,
    }
}

/// The configurations of all runs, or all errors in any of them, each once.
fn check(points: &[Point]) -> Result<Vec<Config>> {
    let (mut configs, mut lines) = (Vec::new(), Vec::new());
    for point in points {
        match resolve(&point.request) {
            Ok(resolved) => configs.push(resolved.config),
            Err(Error::Usage(complaints)) => lines.extend(complaints),
            Err(other) => return Err(other),
        }
    }
    lines.extend(configs.iter().flat_map(misplaced).map(String::from));
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
            "a sweep names the output dir of each run; give --output-dir DIR before the --, for all runs together",
        ),
        (
            config.checkpoint.resume == Resume::Off,
            "a sweep resumes interrupted runs by itself; leave --resume out and give the same --output-dir again",
        ),
        (
            parallel.processes() == 1 && !parallel.elastic.is_on(),
            "a run of a sweep must be one process; leave --nnodes, --rank, --elastic and the launcher out",
        ),
    ];
    rules.into_iter().filter(|(holds, _)| !holds).map(|(_, line)| line)
}

/// Refuses runs that share a directory or a file, or are the same.
fn twins(points: &[Point], configs: &[Config]) -> Vec<String> {
    let (mut names, mut copies, mut texts) = (BTreeSet::new(), BTreeSet::<&PathBuf>::new(), BTreeSet::new());
    let mut lines = Vec::new();
    for (point, config) in points.iter().zip(configs) {
        let (name, copy) = (&point.name, &config.checkpoint.path);
        if !names.insert(name) {
            lines.push(format!("two runs would be called '{name}'; give values that differ in more than slashes"));
        } else if !texts.insert(config.to_toml()) {
            let remedy = "leave out the flag or variable that sets the swept key: it wins over the sweep's values";
            lines.push(format!("the run '{name}' has the settings of another one; {remedy}"));
        }
        if !copy.as_os_str().is_empty() && !copies.insert(copy) {
            let copy = copy.display();
            lines.push(format!("every run would write its best model to '{copy}'; leave --checkpoint out"));
        }
    }
    lines
}
