//! A run of a sweep: how far it is, and its training in a process of its own.

use std::ffi::OsString;
use std::path::PathBuf;

use kiln_engine::checkpoint::run_dir;
use kiln_system::file::{self, TEXT};
use kiln_system::{Result, shown};

use crate::config::Config;
use crate::config::grid::Point;
use crate::metrics::{Summary, format_duration};
use crate::report::Run;
use crate::report::results::percent;
use crate::study::halving::Rung;
use crate::trainer::child::{Ended, run};
use crate::trainer::prepare::share_threads;
use crate::trainer::results::Ending;
use crate::trainer::resume::{changes, written};
use crate::trainer::terminal::{say, warn};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Begun,
    Complete,
}

pub(super) struct Trial<'a> {
    pub(super) point: &'a Point,
    pub(super) config: Config,
    pub(super) epochs: usize,
    pub(super) directory: PathBuf,
    pub(super) ending: Ending,
}

impl Trial<'_> {
    /// Trains it to the end of `rung`, with the arguments `place`; shows its progress if no other run is active. `eta`
    /// are the seconds until all runs of the rung have ended. Returns `None` if nothing was left to do.
    pub(super) fn train(
        &self,
        number: &str,
        rung: Rung,
        place: Vec<String>,
        eta: Option<f64>,
        alone: bool,
    ) -> Result<Option<Ended>> {
        let goal = rung.ends_after(self.epochs);
        let state = self.state(goal);
        let about = match state {
            State::New => "",
            State::Begun => "  continues",
            State::Complete => "  is complete",
        };
        let name = &self.point.name;
        let eta = eta.filter(|_| state != State::Complete);
        let eta = eta.map(|eta| format!("  eta {}", format_duration(eta))).unwrap_or_default();
        say(&format!("{}run {number:<8}{name}{about}{eta}", if alone { "\n" } else { "" }));
        if state == State::Complete {
            return Ok(None);
        }
        let mut arguments = self.point.arguments.clone();
        arguments.extend(place.into_iter().map(OsString::from));
        if goal < self.epochs {
            arguments.push(format!("run.stop_after={goal}").into());
        }
        let mut directory = OsString::from("--output-dir=");
        directory.push(&self.directory);
        arguments.push(directory);
        if state == State::Begun {
            arguments.push("--resume=latest".into());
        }
        let ended = run(arguments, !alone)?;
        match (&ended, self.accuracy(rung)) {
            (Ended { code: 0, .. }, Some(accuracy)) if !alone => {
                say(&format!("end {number:<8}{name}  {}", percent(accuracy)))
            }
            (Ended { code: 0, .. }, _) => {}
            (Ended { code, error_line, .. }, _) => {
                // The run has printed the reason unless it was quiet.
                let why = error_line.as_ref().filter(|_| !alone).map(|line| format!(" ({line})")).unwrap_or_default();
                warn(&format!("run '{name}' failed with exit code {code}{why}; the sweep continues"));
            }
        }
        Ok(Some(ended))
    }

    /// The arguments for one of `jobs` parallel runs: its share of the `devices`, at least one, and of the threads.
    pub(super) fn place(&self, devices: &[usize], slot: usize, jobs: usize) -> Vec<String> {
        if jobs == 1 && devices.is_empty() {
            return Vec::new();
        }
        let parallel = &self.config.parallel;
        let all = if devices.is_empty() { &parallel.gpu_ids } else { devices };
        let own = match all.len() / jobs {
            0 => &all[slot % all.len()..][..1],
            _ => &all[slot * all.len() / jobs..(slot + 1) * all.len() / jobs],
        };
        // A device without a replica would be refused.
        let ids: Vec<String> = own.iter().take(parallel.world_size).map(usize::to_string).collect();
        let threads = (share_threads(self.config.run.threads, 1) / jobs).max(1);
        vec![format!("--gpu-ids={}", ids.join(",")), format!("--threads={threads}")]
    }

    /// Its best validation accuracy until the end of `rung`, even if it has gone further.
    pub(super) fn accuracy(&self, rung: Rung) -> Option<f64> {
        let run = Run::read(&self.directory).ok().filter(|_| self.ending.failure.is_none())?;
        let until = run.epochs.iter().filter(|it| it.epoch <= rung.ends_after(self.epochs));
        until.map(|it| it.val_accuracy).filter(|it| it.is_finite()).reduce(f64::max)
    }

    /// Describes the settings in which the run in its directory differs from this trial.
    pub(super) fn other_settings(&self) -> Option<String> {
        let path = self.directory.join("config.toml");
        let saved = file::text(&path, TEXT).ok().filter(|_| run_dir::is_begun(&self.directory))?;
        let mut changed = changes(&written(path, saved), &self.config, &["run.epochs", "optim", "schedule"]);
        changed.sort();
        changed.dedup();
        let changed = changed.join("; ");
        let directory = shown(&self.directory);
        (!changed.is_empty()).then(|| format!("the run in '{directory}' has other settings: {changed}"))
    }

    /// Its progress towards epoch `goal`; a run with other settings is not complete.
    fn state(&self, goal: usize) -> State {
        let text = file::text(&self.directory.join("config.toml"), TEXT).ok();
        let saved: Option<Config> = text.and_then(|text| toml::from_str(&text).ok());
        let without_end = |config: &Config| {
            let mut config = config.clone();
            config.run.stop_after = 0;
            config.shared()
        };
        let is_same = |saved: &Config| without_end(saved) == without_end(&self.config);
        let reaches = |saved: &Config| saved.run.stop_after == 0 || saved.run.stop_after >= goal;
        let is_goal = saved.is_some_and(|saved| is_same(&saved) && reaches(&saved));
        let run = &self.config.run;
        let may_end_early = run.early_stopping > 0 || run.max_steps > 0 || !run.max_time.is_zero();
        // A run that was killed as it went on may have the summary of its last pause.
        let is_done = |summary: Summary| summary.complete && (may_end_early || summary.epochs >= goal);
        let summary = || Run::read(&self.directory).ok().and_then(|run| run.summary);
        match () {
            () if is_goal && summary().is_some_and(is_done) => State::Complete,
            () if run_dir::is_begun(&self.directory) => State::Begun,
            () => State::New,
        }
    }
}
