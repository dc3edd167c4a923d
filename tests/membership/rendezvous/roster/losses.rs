//! Members are lost, fail, or have trouble; a generation is broken off and the next one begins.

use kiln_membership::rendezvous::membership::{Event, Phase, Ready};

use super::{GRACE, Job, LOST, PATIENCE, TIMEOUT, holds, rules};

#[test]
fn a_spare_that_is_lost_disturbs_nobody() {
    let mut job = Job::running(rules(1, 2), 4);
    let why = job.why();
    job.close(3);
    job.pass_with(2 * LOST, &[1, 2]);
    job.is(Phase::Running, 1);
    assert_eq!((job.why(), job.roster.view().members.len()), (why, 2));
}

#[test]
fn silence_is_a_loss() {
    let mut job = Job::running(rules(1, 4), 2);
    job.pass_with(LOST, &[1]);
    job.is(Phase::Running, 1);
    job.pass_with(100, &[1]);
    job.is(Phase::Over, 1);
    assert_eq!(job.why(), "host h2, process 2 was lost: no sign of life for 10.1 s");
}

#[test]
fn a_failure_is_named_with_its_reason() {
    let mut job = Job::running(rules(1, 4), 2);
    job.tell(Event::Left(2, Some("out of memory\non the device".into())));
    job.is(Phase::Over, 1);
    assert_eq!(job.why(), "host h2, process 2 failed: out of memory on the device");
}

#[test]
fn whoever_leaves_a_running_generation_without_a_reason_breaks_it_off() {
    let mut job = Job::running(rules(1, 4), 2);
    job.ready(&[1]);
    job.is(Phase::Over, 1);
    assert_eq!(job.why(), "host h1, process 1 left generation 1");
}

#[test]
fn trouble_is_explained_by_the_loss_that_caused_it() {
    let mut job = Job::running(rules(1, 4), 3);
    job.tell(Event::Trouble(1, 1, "connection reset".into()));
    job.pass(GRACE - 100);
    job.is(Phase::Running, 1);
    job.close(3);
    job.is(Phase::Over, 1);
    assert_eq!(job.why(), "host h3, process 3 was lost: its connection closed");
}

#[test]
fn trouble_that_nothing_explains_ends_the_generation_and_all_stay() {
    let mut job = Job::running(rules(1, 4), 2);
    job.tell(Event::Trouble(1, 1, "connection reset".into()));
    job.pass(GRACE);
    job.is(Phase::Over, 1);
    assert!(job.why().contains("host h1, process 1") && job.why().contains("connection reset"), "{}", job.why());
    job.ready(&[1, 2]);
    job.is(Phase::Running, 2);
    assert_eq!(job.ids(), [1, 2]);
}

#[test]
fn trouble_of_a_spare_means_nothing() {
    let mut job = Job::running(rules(1, 2), 3);
    job.tell(Event::Trouble(3, 1, "reset".into()));
    job.pass(10 * GRACE);
    job.is(Phase::Running, 1);
}

#[test]
fn a_ready_that_was_said_of_an_earlier_generation_means_nothing() {
    let mut job = Job::running(rules(1, 4), 2);
    job.close(2);
    job.ready(&[1]);
    let late = Ready { generation: 1, holds: holds(1, 1), devices: 1, reason: None };
    job.tell(Event::Ready(1, late));
    job.is(Phase::Running, 2);
}

#[test]
fn a_service_that_was_stopped_blames_nobody_for_it() {
    let mut job = Job::running(rules(2, 4), 2);
    job.tell(Event::Drain(2));
    job.now += 10 * PATIENCE;
    job.pass(LOST);
    job.is(Phase::Ending, 1);
    job.tell(Event::Left(2, None));
    job.ready(&[1]);
    job.is(Phase::Waiting, 1);
    job.now += 2 * TIMEOUT;
    job.pass(LOST);
    assert_eq!(job.verdict, None);
}

#[test]
fn a_line_of_causes_stays_short() {
    let mut job = Job::running(rules(1, 20), 20);
    (2..=20).for_each(|id| job.close(id));
    assert_eq!(job.why().matches("was lost").count(), 5);
    assert!(job.why().ends_with("; and more"), "{}", job.why());
}
