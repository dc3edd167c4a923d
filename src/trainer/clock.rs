//! The time that a run has taken, over all its sessions and writing processes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The directory and the start time of a run. Processes that join later get both from the others.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    directory: PathBuf,
    /// Seconds at `since`: of the whole run, and of this session of it.
    before: [f64; 2],
    since: Option<Instant>,
    last_step: Option<Instant>,
}

impl Clock {
    /// Sets the run's directory and the seconds so far, `session` of them without a restart.
    pub(super) fn set(&self, directory: PathBuf, seconds: f64, session: f64) {
        *self.0.lock() = State { directory, before: [seconds, session], since: Some(Instant::now()), last_step: None };
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.0.lock().directory.clone()
    }

    /// Seconds of training so far, over all sessions.
    pub(super) fn seconds(&self) -> f64 {
        self.seconds_of(0)
    }

    /// Seconds of this session, over all its processes.
    pub(super) fn session(&self) -> f64 {
        self.seconds_of(1)
    }

    pub(super) fn step(&self) {
        self.0.lock().last_step = Some(Instant::now());
    }

    /// Time since the last step in this process, if it has done one.
    pub(super) fn since_step(&self) -> Option<Duration> {
        self.0.lock().last_step.map(|step| step.elapsed())
    }

    fn seconds_of(&self, which: usize) -> f64 {
        let state = self.0.lock();
        state.before[which] + state.since.map_or(0.0, |since| since.elapsed().as_secs_f64())
    }
}
