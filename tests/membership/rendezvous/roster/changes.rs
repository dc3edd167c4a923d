//! Members join, leave in good order, and finish.

use kiln_membership::rendezvous::membership::{
    Action, Event, Phase, Placement, ProcessInfo, Progress, Rules, StateVersion,
};
use kiln_membership::rendezvous::refusal::Refusal;

use super::{GRACE, Job, PATIENCE, SETTLE, TIMEOUT, computing, holds, member, ready_of, rules};

#[test]
fn a_member_without_room_for_a_replica_ends_no_generation() {
    let mut job = Job::new(rules(1, 4));
    job.tell(Event::Joined(1, ProcessInfo { devices: 8, ..member(1) }));
    job.pass(SETTLE);
    job.come(2);
    job.pass(10 * SETTLE);
    job.is(Phase::Running, 1);
}

#[test]
fn a_draining_member_is_not_in_the_next_generation_and_goes_unnoticed() {
    let mut job = Job::running(rules(1, 4), 3);
    job.tell(Event::Drain(1));
    job.is(Phase::Ending, 1);
    assert_eq!(job.why(), "host h1, process 1 leaves");
    job.ready(&[1, 2, 3]);
    job.is(Phase::Running, 2);
    assert_eq!(job.ids(), [2, 3]);
    job.tell(Event::Left(1, None));
    job.close(1);
    job.is(Phase::Running, 2);
    assert_eq!(job.roster.view().members.len(), 2);
}

#[test]
fn a_draining_member_may_go_as_soon_as_its_step_is_finished() {
    let mut job = Job::running(rules(1, 4), 2);
    job.tell(Event::Drain(2));
    job.ready(&[2]);
    job.tell(Event::Left(2, None));
    job.is(Phase::Ending, 1);
    job.ready(&[1]);
    job.is(Phase::Running, 2);
}

#[test]
fn a_draining_member_that_goes_before_ends_the_generation_for_all() {
    let mut job = Job::running(rules(1, 4), 2);
    job.tell(Event::Drain(2));
    job.tell(Event::Left(2, None));
    job.is(Phase::Over, 1);
    assert!(job.why().ends_with("host h2, process 2 left generation 1"));
    job.ready(&[1]);
    job.is(Phase::Running, 2);
}

#[test]
fn a_rank_can_be_asked_to_leave_and_one_that_nobody_has_is_refused() {
    let mut job = Job::running(rules(1, 2), 3);
    for rank in [2, usize::MAX] {
        let actions = job.tell(Event::DrainRank(rank));
        let [Action::Refuse(refusal)] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!(refusal.reason, format!("the run has no rank '{rank}' to --drain, only ranks 0-1"));
        assert!(!refusal.transient);
    }
    job.is(Phase::Running, 1);
    assert_eq!(job.tell(Event::DrainRank(1)).len(), 1, "an announcement");
    job.is(Phase::Ending, 1);
    let draining: Vec<_> = job.roster.view().members.iter().map(|entry| entry.draining).collect();
    assert_eq!(draining, [false, true, false]);
}

/// The request itself may be what lets the roster look at the clock.
#[test]
fn before_the_first_generation_no_rank_can_leave_and_yet_it_begins() {
    let mut job = Job::new(rules(1, 4));
    job.come(1);
    job.come(2);
    job.pass(SETTLE - 1);
    job.is(Phase::Waiting, 0);
    job.now += 1;
    let actions = job.tell(Event::DrainRank(1));
    let [Action::Refuse(refusal), Action::Announce(_), ..] = actions.as_slice() else { panic!("{actions:?}") };
    assert!(refusal.transient && refusal.reason.contains("before the first generation"), "{refusal:?}");
    job.is(Phase::Running, 1);
}

#[test]
fn a_draining_spare_just_leaves() {
    let mut job = Job::running(rules(1, 2), 3);
    job.tell(Event::Drain(3));
    job.tell(Event::Left(3, None));
    job.is(Phase::Running, 1);
    assert_eq!(job.roster.view().members.len(), 2);
}

#[test]
fn the_newest_state_is_handed_over_though_its_holder_has_devices_for_all_replicas() {
    let mut job = Job::new(rules(1, 4));
    (1..=2).for_each(|id| drop(job.tell(Event::Joined(id, ProcessInfo { devices: 8, ..member(id) }))));
    job.pass(SETTLE);
    assert_eq!(job.ids(), [1]);
    job.tell(Event::Drain(1));
    job.ready_with(1, holds(1, 50), 8, None);
    job.is(Phase::Ending, 2);
    assert_eq!(job.parts(), [(1, 0..1), (2, 1..8)]);
}

#[test]
fn among_holders_of_the_newest_state_who_computed_and_who_stays_come_first() {
    let spare = |id, draining| Event::Joined(id, ProcessInfo { holds: holds(1, 50), draining, ..member(id) });
    let after = |own: StateVersion| {
        let mut job = Job::running(rules(1, 1), 1);
        job.tell(spare(2, false));
        job.tell(spare(3, true));
        job.tell(Event::Trouble(1, 1, "reset".into()));
        job.pass(GRACE);
        job.ready_with(1, own, 1, None);
        job.is(Phase::Running, 2);
        job.ids()
    };
    assert_eq!(after(holds(1, 50)), [1]);
    assert_eq!(after(holds(0, 0)), [2]);
}

#[test]
fn one_replica_is_not_shared_with_a_member_that_leaves() {
    let mut job = Job::new(Rules { world: 1, ..rules(1, 1) });
    [1, 2].into_iter().for_each(|id| drop(job.come(id)));
    assert_eq!(job.ids(), [1]);
    job.tell(Event::Drain(1));
    job.ready_with(1, holds(1, 50), 1, None);
    job.is(Phase::Running, 2);
    assert_eq!(job.ids(), [2]);
}

#[test]
fn a_member_without_a_device_left_does_not_count() {
    let mut job = Job::running(rules(2, 4), 2);
    job.ready_with(2, holds(1, 50), 0, Some("its device failed"));
    assert_eq!(job.why(), "host h2, process 2 failed: its device failed");
    job.ready_with(1, holds(1, 50), 1, None);
    job.is(Phase::Waiting, 1);
}

#[test]
fn progress_is_shown_in_one_short_line_and_survives_a_reconnect() {
    let mut job = Job::running(rules(1, 1), 1);
    let placement = job.roster.view().placement();
    let progress = Progress {
        activity: format!("step 7\n{}", "x".repeat(1000)),
        step: 7,
        images_per_second: 9.5,
        waited: [1.5, 2.5],
    };
    job.tell(Event::Beat(1, progress));
    job.tell(Event::Joined(20, computing(1, &placement)));
    let shown = job.roster.view().members[0].progress.clone();
    assert_eq!((shown.step, shown.images_per_second), (7, 9.5));
    assert!(shown.activity.starts_with("step 7 xxx") && shown.activity.len() <= 203, "{}", shown.activity);
}

#[test]
fn a_step_that_is_not_finished_in_time_is_broken_off_and_who_is_stuck_is_removed() {
    let mut job = Job::running(rules(1, 4), 3);
    job.tell(Event::Drain(1));
    job.ready(&[1]);
    job.pass(PATIENCE - 100);
    job.is(Phase::Ending, 1);
    job.pass(100);
    job.is(Phase::Over, 1);
    assert!(job.why().contains("did not finish its step within 60.0 s"), "{}", job.why());
    job.ready(&[2]);
    job.pass(PATIENCE);
    job.is(Phase::Running, 2);
    assert_eq!(job.ids(), [2]);
    assert!(job.why().contains("host h3, process 3 was removed: it did not get ready within 60.0 s"), "{}", job.why());
}

#[test]
fn a_finished_member_completes_the_job_whatever_comes_later() {
    let mut job = Job::running(rules(2, 4), 2);
    job.tell(Event::Left(1, None));
    assert_eq!(job.announced.last().map(|view| view.phase), Some(Phase::Complete));
    job.tell(Event::Trouble(2, 1, "reset".into()));
    job.close(2);
    job.pass_with(2 * TIMEOUT, &[]);
    assert_eq!(job.verdict, None);
    let complete = Refusal::permanent("the job is complete");
    assert_eq!(job.refusal(member(3)), complete);
    assert!(job.roster.is_complete_for(&complete) && !job.roster.is_complete_for(&Refusal::permanent("too many")));
    assert!(!Job::running(rules(1, 1), 1).roster.is_complete_for(&complete));
}

#[test]
fn a_newcomer_has_its_own_time_to_get_ready() {
    let mut job = Job::running(rules(2, 2), 2);
    let earlier = Placement { generation: 9, ..job.roster.view().placement() };
    job.close(2);
    job.ready(&[1]);
    job.pass(2 * PATIENCE);
    job.tell(Event::Joined(3, computing(3, &earlier)));
    job.pass(PATIENCE - 100);
    job.is(Phase::Waiting, 1);
    assert_eq!(job.roster.view().members.len(), 2);
    job.tell(Event::Ready(3, ready_of(9)));
    job.is(Phase::Running, 10);
}
