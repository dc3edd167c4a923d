//! The end of a launch as a table of events and times; no process takes part.

use std::time::{Duration, Instant};

use kiln_membership::exit_policy::{Ending, ExitPolicy};
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM};

const GRACE: Duration = Duration::from_secs(5);

fn end(rank: usize, code: u8) -> Ending {
    Ending { rank, code, signal: None }
}

#[test]
fn a_calm_launch_ends_with_0_and_no_signal() {
    let now = Instant::now();
    let mut exit_policy = ExitPolicy::new(Some(GRACE));
    exit_policy.ended(end(0, 0), now);
    exit_policy.ended(end(1, 0), now);
    assert_eq!((exit_policy.code(), exit_policy.failure(), exit_policy.time_left(now)), (0, None, None));
}

#[test]
fn after_the_first_failure_the_others_get_time_then_sigterm_then_sigkill() {
    let now = Instant::now();
    let mut exit_policy = ExitPolicy::new(Some(GRACE));
    exit_policy.ended(end(1, 3), now);
    assert_eq!(exit_policy.due(now), None);
    assert_eq!(exit_policy.time_left(now), Some(GRACE));
    assert_eq!(exit_policy.due(now + GRACE), Some(SIGTERM));
    assert_eq!(exit_policy.due(now + GRACE), None);
    assert_eq!(exit_policy.due(now + 2 * GRACE), Some(SIGKILL));
    assert_eq!(exit_policy.due(now + 9 * GRACE), None);
}

#[test]
fn the_first_failure_gives_the_code() {
    let now = Instant::now();
    let mut exit_policy = ExitPolicy::new(Some(GRACE));
    exit_policy.ended(end(0, 0), now);
    exit_policy.ended(end(2, 3), now);
    exit_policy.ended(end(1, 4), now);
    assert_eq!((exit_policy.code(), exit_policy.failure()), (3, Some(end(2, 3))));
}

#[test]
fn a_process_that_lost_another_is_not_the_cause_even_if_it_ended_first() {
    let now = Instant::now();
    let mut exit_policy = ExitPolicy::new(Some(GRACE));
    exit_policy.ended(end(0, 75), now);
    exit_policy.ended(end(1, 1), now + GRACE / 2);
    assert_eq!(exit_policy.failure(), Some(end(1, 1)));
    assert_eq!(exit_policy.time_left(now), Some(GRACE), "the time runs from the first end");
}

#[test]
fn an_end_by_the_sigterm_of_the_launcher_is_not_the_cause() {
    let now = Instant::now();
    let mut exit_policy = ExitPolicy::new(Some(GRACE));
    exit_policy.ended(end(0, 75), now);
    exit_policy.due(now + GRACE);
    exit_policy.ended(end(1, 143), now + GRACE);
    assert_eq!(exit_policy.failure(), Some(end(0, 75)));
}

#[test]
fn an_end_by_a_forwarded_signal_is_no_failure_and_hurries_nobody() {
    let now = Instant::now();
    let mut exit_policy = ExitPolicy::new(Some(GRACE));
    exit_policy.forwarded(SIGINT);
    exit_policy.ended(end(0, 130), now);
    assert_eq!(exit_policy.time_left(now), None);
    exit_policy.ended(end(1, 130), now);
    assert_eq!((exit_policy.code(), exit_policy.failure()), (130, None));
}

#[test]
fn a_failure_after_a_forwarded_signal_is_still_a_failure() {
    let now = Instant::now();
    let mut exit_policy = ExitPolicy::new(Some(GRACE));
    exit_policy.forwarded(SIGTERM);
    exit_policy.ended(end(0, 143), now);
    exit_policy.ended(end(1, 1), now);
    assert_eq!((exit_policy.code(), exit_policy.failure()), (1, Some(end(1, 1))));
}

#[test]
fn an_end_by_a_signal_nobody_forwarded_is_a_failure() {
    let mut exit_policy = ExitPolicy::new(Some(GRACE));
    exit_policy.ended(Ending { rank: 0, code: 137, signal: Some(9) }, Instant::now());
    assert_eq!(exit_policy.code(), 137);
}

#[test]
fn processes_that_do_not_need_each_other_end_alone_and_one_success_is_enough() {
    let now = Instant::now();
    let mut exit_policy = ExitPolicy::new(None);
    exit_policy.ended(Ending { rank: 2, code: 137, signal: Some(SIGKILL) }, now);
    assert_eq!((exit_policy.time_left(now), exit_policy.due(now + GRACE)), (None, None), "the others stay");
    assert_eq!(exit_policy.code(), 137, "nobody has succeeded");
    exit_policy.ended(end(1, 143), now);
    exit_policy.ended(end(0, 0), now);
    assert_eq!((exit_policy.code(), exit_policy.failure()), (0, None));
}

#[test]
fn a_run_that_went_on_after_a_loss_and_a_drained_process_ends_as_it_was_stopped() {
    let now = Instant::now();
    let mut exit_policy = ExitPolicy::new(None);
    exit_policy.ended(Ending { rank: 2, code: 137, signal: Some(SIGKILL) }, now);
    exit_policy.ended(end(1, 0), now);
    exit_policy.forwarded(SIGTERM);
    exit_policy.ended(end(0, 143), now);
    assert_eq!((exit_policy.code(), exit_policy.failure()), (143, None));
    // Whoever is lost last takes the run with it.
    exit_policy.ended(end(3, 1), now);
    assert_eq!((exit_policy.code(), exit_policy.failure()), (1, Some(end(3, 1))));
}
