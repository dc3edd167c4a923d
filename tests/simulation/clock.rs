//! Virtual time, in milliseconds. It takes the place of the clock of the system in the mounted files.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// A moment of virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    pub fn now() -> Self {
        Self(NOW.get())
    }

    pub fn elapsed(self) -> Duration {
        Duration::from_millis(NOW.get() - self.0)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time.as_millis() as u64)
    }
}

/// Only the simulation's loop calls this.
pub fn set(milliseconds: u64) {
    NOW.set(milliseconds);
}
