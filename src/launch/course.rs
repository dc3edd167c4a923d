//! How a launch goes to its end: which process failed first, and when the others are told to end.
//!
//! Pure policy over (event, time), so that it is tested without processes. [`super::processes`] brings the events and
//! sends the signals.

use std::time::{Duration, Instant};

use signal_hook::consts::{SIGKILL, SIGTERM};

/// The exit code of a process that ended because it lost another one: never the cause where there is another code.
const PEER_LOST: u8 = 75;

/// The exit codes of processes that stopped in good order: 128 + SIGINT, SIGUSR1, SIGTERM.
const STOPPED: [u8; 3] = [130, 138, 143];

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// Which one.
    pub rank: usize,
    /// Its exit code; 128 + signal if a signal killed it.
    pub code: u8,
    /// The signal that killed it.
    pub signal: Option<i32>,
}

/// A launch between its first process and its last.
#[derive(Debug)]
pub struct Course {
    /// How long the others have to end by themselves after a failure; none where they do not need each other.
    grace: Option<Duration>,
    forwarded: Vec<i32>,
    failure: Option<Ending>,
    /// The code of a launch without a failure.
    code: u8,
    /// Whether a process has done all there was to do.
    has_success: bool,
    /// When the processes that are left get which signal.
    next: Option<(Instant, i32)>,
}

impl Course {
    /// All run. After a failure the others have `grace` to end by themselves, then SIGTERM and `grace` again, then
    /// SIGKILL.
    pub fn new(grace: Duration) -> Self {
        Self::with(Some(grace))
    }

    /// All run, and each may end without the others: as long as one succeeds, all is well.
    pub fn elastic() -> Self {
        Self::with(None)
    }

    fn with(grace: Option<Duration>) -> Self {
        Self { grace, forwarded: Vec::new(), failure: None, code: 0, has_success: false, next: None }
    }

    /// The user's `signal` went to all: an end with 128 + `signal` is from now on what was asked for.
    pub fn forwarded(&mut self, signal: i32) {
        self.forwarded.push(signal);
    }

    /// The user's first signal.
    pub fn signal(&self) -> Option<i32> {
        self.forwarded.first().copied()
    }

    /// A process ended.
    pub fn ended(&mut self, ending: Ending, now: Instant) {
        if ending.code == 0 {
            self.has_success = true;
            return;
        }
        // A process that was signalled saves and makes all others do the same.
        let agreed = ending.signal.is_none() && STOPPED.contains(&ending.code);
        if agreed || self.forwarded.iter().any(|signal| 128 + signal == i32::from(ending.code)) {
            self.code = if self.code == 0 { ending.code } else { self.code };
            return;
        }
        match self.failure {
            None => {
                self.failure = Some(ending);
                self.next = self.grace.map(|grace| (now + grace, SIGTERM));
            }
            // The one that failed may be slower to end than those that lost it; after SIGTERM ends say nothing.
            Some(Ending { code: PEER_LOST, .. }) if ending.code != PEER_LOST && self.others_end_by_themselves() => {
                self.failure = Some(ending);
            }
            Some(_) => {}
        }
    }

    fn others_end_by_themselves(&self) -> bool {
        self.next.is_some_and(|(_, signal)| signal == SIGTERM)
    }

    /// How long nothing is to be done unless something happens.
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        self.next.map(|(time, _)| time.saturating_duration_since(now))
    }

    /// The signal that is due for all that are left.
    pub fn due(&mut self, now: Instant) -> Option<i32> {
        let (_, signal) = self.next.filter(|(time, _)| *time <= now)?;
        self.next = self.grace.filter(|_| signal == SIGTERM).map(|grace| (now + grace, SIGKILL));
        Some(signal)
    }

    /// Who failed first, if anyone did and it counts.
    pub fn failure(&self) -> Option<Ending> {
        self.failure.filter(|_| !self.is_well())
    }

    /// The exit code of the whole launch.
    pub fn code(&self) -> u8 {
        let code = if self.is_well() { 0 } else { self.code };
        self.failure().map_or(code, |failure| failure.code)
    }

    fn is_well(&self) -> bool {
        self.grace.is_none() && self.has_success
    }
}
