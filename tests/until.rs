//! Waiting for what a test has started.

use std::time::{Duration, Instant};

/// Looks every millisecond whether something in another process has come about; three minutes, for the machine may have
/// more to do.
#[track_caller]
pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(180), "waiting in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
