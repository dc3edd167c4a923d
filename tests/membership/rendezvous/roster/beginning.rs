//! Who is admitted, and when a job begins.

use std::time::Duration;

use kiln_membership::rendezvous::membership::{Action, Event, Phase, ProcessInfo, Progress, Rules};
use kiln_membership::rendezvous::refusal::Refusal;

use super::{Job, SETTLE, TIMEOUT, member, rules};

#[test]
fn a_job_begins_when_enough_members_are_there_and_nobody_came_for_a_while() {
    let mut job = Job::new(rules(2, 4));
    assert_eq!(job.come(1).first(), Some(&Action::Welcome));
    assert_eq!(job.why(), "1 member is here, --elastic asks for at least 2");
    job.pass(5 * SETTLE);
    job.come(2);
    job.pass(SETTLE - 100);
    job.come(3);
    job.pass(SETTLE - 100);
    job.is(Phase::Waiting, 0);
    job.pass(100);
    job.is(Phase::Running, 1);
    assert_eq!(job.parts(), [(1, 0..3), (2, 3..6), (3, 6..8)]);
    assert_eq!(job.why(), "host h1, process 1 joined; host h2, process 2 joined; host h3, process 3 joined");
    assert_eq!(job.announced.last(), Some(&job.roster.view()));
}

#[test]
fn arrivals_without_end_do_not_delay_the_beginning_without_end() {
    let mut job = Job::new(rules(1, 100));
    for id in 1..=8 {
        job.come(id);
        job.pass(SETTLE / 2);
    }
    job.is(Phase::Running, 1);
}

#[test]
fn differing_settings_are_named_and_refused_while_the_job_goes_on() {
    let mut job = Job::running(rules(1, 4), 2);
    let mut who = member(3);
    who.configuration.insert("batch_size".into(), "16".into());
    who.configuration.remove("epochs");
    let Refusal { reason, transient, .. } = job.refusal(who);
    assert!(!transient);
    assert_eq!(
        reason,
        "batch_size is '16' on host h3, process 3, '8' on host h1, process 1; epochs is not set on host h3, \
         process 3, '2' on host h1, process 1; give every process the same configuration"
    );
    job.is(Phase::Running, 1);
}

#[test]
fn nonsense_newcomers_are_refused() {
    let mut job = Job::running(rules(1, 4), 1);
    assert!(job.refusal(ProcessInfo { devices: 0, ..member(2) }).reason.contains("has no devices"));
    assert!(job.refusal(ProcessInfo { host: "h".repeat(256), ..member(2) }).reason.contains("longer than 255 bytes"));
    assert!(job.refusal(ProcessInfo { latest_generation: u64::MAX, ..member(2) }).reason.contains("claims generation"));
    let longest = ProcessInfo { host: "h".repeat(255), latest_generation: u64::MAX / 2, ..member(2) };
    assert_eq!(job.tell(Event::Joined(2, longest))[0], Action::Welcome);
}

#[test]
fn a_job_takes_no_more_than_2048_members() {
    let mut job = Job::new(Rules { settle: Duration::from_secs(9), ..rules(1, 4000) });
    (1..=2048).for_each(|id| drop(job.come(id)));
    let Refusal { reason, transient, .. } = job.refusal(member(2049));
    assert!(transient && reason.contains("2048 members"), "{reason}");
    assert_eq!(job.come(7), [Action::Welcome], "whoever is a member may come back");
}

#[test]
fn too_few_members_wait_for_more_and_give_up_after_the_elastic_timeout() {
    let mut job = Job::running(rules(2, 4), 2);
    job.close(2);
    job.is(Phase::Over, 1);
    job.ready(&[1]);
    job.is(Phase::Waiting, 1);
    assert!(job.why().ends_with("; 1 member is here, --elastic asks for at least 2"), "{}", job.why());
    job.pass(TIMEOUT - 100);
    assert_eq!(job.verdict, None);
    job.pass(100);
    let verdict = job.verdict.clone().unwrap();
    assert_eq!(
        verdict,
        "1 member is here, --elastic asks for at least 2, and no further process came within 600.0 s (--elastic-timeout)"
    );
    let Refusal { reason, transient, .. } = job.refusal(member(3));
    assert!(transient && reason.ends_with(&verdict), "{reason}");
    assert_eq!(job.tell(Event::Left(1, None)), [], "it is over");
    job.is(Phase::Waiting, 1);
}

#[test]
fn who_only_reconnects_does_not_delay_the_beginning() {
    let mut job = Job::new(rules(1, 4));
    job.come(1);
    job.pass(SETTLE - 100);
    job.tell(Event::Joined(10, member(1)));
    job.tell(Event::Beat(10, Progress::default()));
    job.pass(100);
    job.is(Phase::Running, 1);
}

#[test]
fn the_clock_stops_when_enough_members_are_there() {
    let mut job = Job::running(rules(2, 2), 2);
    for id in 3..6 {
        job.close(2);
        job.close(id - 1);
        job.ready(&[1]);
        job.pass(TIMEOUT - 100);
        job.come(id);
        job.is(Phase::Running, id - 1);
    }
    assert_eq!(job.verdict, None);
}

#[test]
fn the_first_member_may_come_as_late_as_it_wants() {
    let mut job = Job::new(rules(1, 4));
    job.pass(2 * TIMEOUT);
    assert_eq!(job.verdict, None);
    job.come(1);
    job.pass(SETTLE);
    job.is(Phase::Running, 1);
}
