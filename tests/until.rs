//! Waiting for what a test has started.

use std::process::Child;
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

/// Ends a process at once.
#[track_caller]
pub fn kill(child: &mut Child) {
    child.kill().unwrap();
    wait(child);
}

/// Waits for a process, at most as long as [`until`] looks.
#[track_caller]
pub fn wait(child: &mut Child) -> Option<i32> {
    let mut code = None;
    until("the process ends", || child.try_wait().unwrap().map(|status| code = status.code()).is_some());
    code
}
