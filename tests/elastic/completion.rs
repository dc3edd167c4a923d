//! Processes that come to a run, or have a part in it, when there is nothing left to do.

use super::*;
use crate::command::succeeded;

#[test]
fn a_process_in_reserve_ends_with_the_run() {
    let job = Job::new("1:1", &["--epochs=25"]);
    let first = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let mut reserve = job.member();
    reserve.arg("--output-dir=other");
    let reserve = spawn(reserve);
    let process = format!(" {} ", reserve.id());
    until("the second process waits", || String::from_utf8_lossy(&job.members(&[]).stdout).contains(&process));
    ends(first, Some(0));
    let text = succeeded(&reserve.wait_with_output().unwrap());
    assert!(text.contains("the run is complete: other processes have finished it"), "{text}");
    assert!(!job.place.path("other/metrics.jsonl").exists(), "it trained anew");
    job.run().equals(&job.calm(&[]), 25);
}

#[test]
fn a_process_does_not_join_with_a_directory_that_another_run_has() {
    let job = Job::new("1:4", &ENDLESS);
    let mut other = spawn(job.place.small("taken", &["--epochs=100000"]));
    until("another run saves", || job.place.run("taken").has_checkpoint());
    let first = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let mut member = job.member();
    member.arg("--output-dir=taken");
    let lines = ends(spawn(member), Some(75));
    assert!(lines.concat().contains(&format!("'taken' is in use by process {} on host", other.id())), "{lines:?}");
    kill(&mut other);
    job.stops([first]);
}

#[test]
fn a_process_that_comes_after_the_end_finds_nothing_to_do() {
    let job = Job::new("1:4", &["--epochs=5"]);
    ends(job.start(), Some(0));
    let before =
        (job.run().steps(), job.run().tensors(), std::fs::read(job.run().path().join("summary.json")).unwrap());
    let text = succeeded(&job.member().output().unwrap());
    assert!(text.contains("the run is complete: 20 steps are done"), "{text}");
    let again = (job.run().steps(), job.run().tensors(), std::fs::read(job.run().path().join("summary.json")).unwrap());
    assert_eq!(before, again);
    // Another experiment needs a directory of its own.
    let mut other = job.member();
    other.arg("--learning-rate=0.5");
    let lines = ends(spawn(other), Some(2));
    assert!(lines.concat().contains("already holds checkpoints"), "{lines:?}");
}
