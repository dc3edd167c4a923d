//! Newcomers connect while the others compute: nobody waits for them, and who cannot be connected stays in reserve.

use kiln_membership::rendezvous::membership::{Event, Phase, Placement};

use super::{Job, PATIENCE, SETTLE, member, rules};

/// A job in which `count` members compute, and the others know of no newcomer yet.
fn unconnected(count: u64) -> Job {
    Job { connects: false, ..Job::running(rules(1, 8), count) }
}

fn pending(job: &Job) -> Placement {
    job.roster.view().pending.expect("a generation to come")
}

/// Two members compute, and a third one is to be connected with them.
fn with_newcomer() -> (Job, Placement) {
    let mut job = unconnected(2);
    job.come(3);
    job.pass(SETTLE - 100);
    assert_eq!(job.roster.view().pending, None);
    job.pass(100);
    let coming = pending(&job);
    (job, coming)
}

fn ids(placement: &Placement) -> Vec<u64> {
    placement.blocks.iter().map(|block| block.id).collect()
}

#[test]
fn a_generation_ends_for_a_newcomer_once_all_are_connected_and_the_next_one_is_theirs() {
    let (mut job, coming) = with_newcomer();
    assert_eq!((coming.generation, ids(&coming)), (2, vec![1, 3, 2]));
    for id in [1, 3] {
        job.tell(Event::Connected(id, 2));
        job.pass(SETTLE);
        job.is(Phase::Running, 1);
    }
    // Of an attempt that is none, or not the present one.
    job.tell(Event::Connected(2, 1));
    job.is(Phase::Running, 1);
    job.tell(Event::Connected(2, 2));
    job.ready(&[1]);
    job.is(Phase::Ending, 1);
    job.ready(&[2]);
    job.is(Phase::Running, 2);
    assert_eq!(job.why(), "host h3, process 3 joined");
    assert_eq!((job.roster.view().placement(), job.roster.view().pending), (coming, None));
}

#[test]
fn who_comes_while_others_connect_is_connected_with_them_under_another_number() {
    let mut job = unconnected(1);
    job.come(2);
    job.pass(SETTLE);
    job.tell(Event::Connected(1, 2));
    job.come(3);
    job.pass(SETTLE);
    let coming = pending(&job);
    assert_eq!((coming.generation, ids(&coming).len()), (3, 3));
    // What was connected for the earlier attempt means nothing.
    job.tell(Event::Connected(2, 2));
    job.is(Phase::Running, 1);
    job.connect(&coming);
    job.is(Phase::Ending, 1);
}

#[test]
fn an_attempt_ends_for_all_when_one_of_it_returns_with_a_new_connection_or_goes() {
    let (mut job, coming) = with_newcomer();
    job.come(4);
    assert_eq!(job.announced.last().unwrap().pending.as_ref(), Some(&coming));
    job.tell(Event::Joined(30, member(3)));
    // At once, not only when the next attempt begins.
    assert_eq!(job.announced.last().unwrap().pending, None);
    job.pass(SETTLE);
    assert_eq!((pending(&job).generation, ids(&pending(&job)).len()), (3, 4));
    [30, 4].into_iter().for_each(|session| job.close(session));
    assert_eq!(job.roster.view().pending, None);
    job.is(Phase::Running, 1);
}

#[test]
fn who_comes_while_a_step_is_finished_waits_for_its_own_turn() {
    let mut job = unconnected(1);
    job.come(2);
    job.pass(SETTLE);
    job.connect(&pending(&job));
    job.is(Phase::Ending, 1);
    job.come(3);
    job.pass(SETTLE);
    job.ready(&[1]);
    job.is(Phase::Running, 2);
    assert_eq!(job.ids(), [1, 2]);
    job.pass(SETTLE);
    assert_eq!(ids(&pending(&job)).len(), 3);
}

#[test]
fn who_is_not_connected_in_time_stays_in_reserve_and_is_tried_again() {
    let mut job = unconnected(2);
    job.come(3);
    job.pass(SETTLE);
    assert_eq!(pending(&job).generation, 2);
    job.pass(PATIENCE);
    job.is(Phase::Running, 1);
    assert_eq!(job.roster.view().pending, None);
    // Nor does anybody wait for it after a loss.
    job.close(2);
    job.ready(&[1]);
    job.is(Phase::Running, 3);
    assert_eq!(job.ids(), [1]);
    job.pass(PATIENCE);
    job.connect(&pending(&job));
    job.ready(&[1]);
    job.is(Phase::Running, 4);
    assert_eq!(job.ids(), [1, 3]);
}

#[test]
fn a_pause_of_the_service_counts_neither_as_time_to_connect_nor_as_time_in_reserve() {
    let (mut job, coming) = with_newcomer();
    job.now += 2 * PATIENCE;
    job.tell(Event::Tick);
    assert_eq!(pending(&job), coming);
    job.pass(PATIENCE);
    assert_eq!(job.roster.view().pending, None);
    job.now += 2 * PATIENCE;
    job.tell(Event::Tick);
    assert_eq!(job.roster.view().pending, None);
    job.pass(PATIENCE);
    assert_ne!(pending(&job), coming);
}

#[test]
fn who_is_in_reserve_takes_part_where_there_are_too_few_without_it() {
    let mut job = Job { connects: false, ..Job::running(rules(2, 8), 2) };
    job.come(3);
    job.pass(SETTLE);
    job.tell(Event::Trouble(1, pending(&job).generation, "no route to host".into()));
    assert_eq!(job.roster.view().pending, None);
    job.close(2);
    job.ready(&[1]);
    job.is(Phase::Running, 3);
    assert_eq!(job.ids(), [1, 3]);
}

#[test]
fn one_of_several_newcomers_that_cannot_be_connected_keeps_the_others_out_for_a_while_only() {
    let mut job = unconnected(1);
    (2..=3).for_each(|id| drop(job.come(id)));
    job.pass(SETTLE);
    // Nobody reaches the second member: first alone with the third, then by itself.
    for expected in [vec![1, 2, 3], vec![1, 2]] {
        let coming = pending(&job);
        let mut present = ids(&coming);
        present.sort_unstable();
        assert_eq!(present, expected);
        job.tell(Event::Trouble(1, coming.generation, "no route to host".into()));
        job.pass(SETTLE);
    }
    job.pass(PATIENCE - 2 * SETTLE);
    let coming = pending(&job);
    assert_eq!(ids(&coming), [1, 3]);
    job.connect(&coming);
    job.ready(&[1]);
    job.is(Phase::Running, coming.generation);
}

#[test]
fn a_generation_of_others_than_those_who_are_connected_has_a_number_of_its_own() {
    let (mut job, coming) = with_newcomer();
    job.connect(&coming);
    job.is(Phase::Ending, 1);
    job.close(2);
    job.ready(&[1]);
    job.is(Phase::Running, 3);
}
