//! How a launch ends: which process failed first, when the others are signalled, and the exit code.
//!
//! A pure state machine over events and times, to be tested without processes. [`super::processes`] sends the signals.

use std::time::{Duration, Instant};

use kiln_system::stop::STOPPING;
use signal_hook::consts::{SIGKILL, SIGTERM};

/// The exit code of a process that ended because it lost another one, which is then the cause.
const PEER_LOST: u8 = 75;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    pub rank: usize,
    /// Its exit code; 128 + signal if a signal killed it.
    pub code: u8,
    pub signal: Option<i32>,
}

#[derive(Debug)]
pub struct ExitPolicy {
    /// How long the others have to end by themselves after a failure; `None` if they can continue.
    grace: Option<Duration>,
    forwarded: Vec<i32>,
    failure: Option<Ending>,
    /// The code of a launch without a failure.
    code: u8,
    has_success: bool,
    /// The next signal for the remaining processes, and its time.
    next: Option<(Instant, i32)>,
}

impl ExitPolicy {
    /// After a failure the others have `grace` to end by themselves, then they get SIGTERM, and after another `grace`
    /// SIGKILL. Without `grace`, as for an elastic run, a process may end without the others: the launch succeeds if one
    /// process does, and is stopped if one is stopped after the last success or failure.
    pub fn new(grace: Option<Duration>) -> Self {
        Self { grace, forwarded: Vec::new(), failure: None, code: 0, has_success: false, next: None }
    }

    /// The user's `signal` was forwarded: from now on exit code 128 + `signal` is no failure.
    pub fn forwarded(&mut self, signal: i32) {
        self.forwarded.push(signal);
    }

    pub fn signal(&self) -> Option<i32> {
        self.forwarded.first().copied()
    }

    pub fn ended(&mut self, ending: Ending, now: Instant) {
        if ending.code == 0 {
            self.has_success = true;
            return;
        }
        // A process that was signalled on its own saves and makes all others stop as well.
        let agreed = ending.signal.is_none() && STOPPING.iter().any(|signal| ending.code == 128 + *signal as u8);
        if agreed || self.forwarded.iter().any(|signal| 128 + signal == i32::from(ending.code)) {
            self.code = if self.code == 0 { ending.code } else { self.code };
            if self.grace.is_none() {
                // The run went on after those that ended before: lost, or asked to leave.
                (self.failure, self.has_success) = (None, false);
            }
            return;
        }
        match self.failure {
            None => {
                self.failure = Some(ending);
                self.next = self.grace.map(|grace| (now + grace, SIGTERM));
            }
            // The process that failed may end after those that lost it. After SIGTERM, exit codes say nothing.
            Some(Ending { code: PEER_LOST, .. }) if ending.code != PEER_LOST && self.others_end_by_themselves() => {
                self.failure = Some(ending);
            }
            Some(_) => {}
        }
    }

    fn others_end_by_themselves(&self) -> bool {
        self.next.is_some_and(|(_, signal)| signal == SIGTERM)
    }

    /// The time until the next signal, if there is one.
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        self.next.map(|(time, _)| time.saturating_duration_since(now))
    }

    /// The signal to send to all remaining processes now.
    pub fn due(&mut self, now: Instant) -> Option<i32> {
        let (_, signal) = self.next.filter(|(time, _)| *time <= now)?;
        self.next = self.grace.filter(|_| signal == SIGTERM).map(|grace| (now + grace, SIGKILL));
        Some(signal)
    }

    /// The process that failed first; `None` after a success.
    pub fn failure(&self) -> Option<Ending> {
        self.failure.filter(|_| !self.has_succeeded())
    }

    pub fn code(&self) -> u8 {
        let code = if self.has_succeeded() { 0 } else { self.code };
        self.failure().map_or(code, |failure| failure.code)
    }

    fn has_succeeded(&self) -> bool {
        self.grace.is_none() && self.has_success
    }
}
