//! The service is restarted, and members reconnect: what runs goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use kiln_membership::rendezvous::membership::{Event, Phase, Placement, ProcessInfo};
use kiln_membership::rendezvous::roster::Roster;

use super::{Job, LOST, SETTLE, computing, holds, member, ready_of, rules};

#[test]
fn a_restarted_service_adopts_the_generation_that_runs() {
    let mut job = Job::running(rules(2, 3), 3);
    job.pass(10 * SETTLE);
    let placement = job.restart(rules(2, 3));
    job.tell(Event::Joined(12, computing(2, &placement)));
    job.is(Phase::Running, 1);
    job.tell(Event::Joined(14, member(4)));
    job.pass_with(LOST / 2, &[12, 14]);
    job.tell(Event::Joined(11, computing(1, &placement)));
    job.tell(Event::Joined(13, computing(3, &placement)));
    job.pass_with(2 * LOST, &[11, 12, 13, 14]);
    job.is(Phase::Running, 1);
    assert_eq!(job.roster.view().placement(), placement);
    job.tell(Event::Closed(13, "its connection closed".into()));
    [11, 12].iter().for_each(|session| drop(job.ready_with(*session, holds(1, 9), 1, None)));
    job.is(Phase::Running, 2);
    assert_eq!(job.ids(), [1, 2, 4]);
}

#[test]
fn a_restarted_service_continues_the_numbers_and_prefers_those_who_hold_the_newest_state() {
    let mut job = Job::new(rules(2, 2));
    job.come(1);
    job.tell(Event::Joined(2, ProcessInfo { holds: holds(4, 40), draining: true, ..member(2) }));
    job.tell(Event::Joined(3, ProcessInfo { holds: holds(4, 39), ..member(3) }));
    job.is(Phase::Ending, 5);
    assert_eq!(job.ids(), [2, 3, 1]);
}

#[test]
fn a_restarted_service_names_those_who_are_missing_and_not_those_who_are_back() {
    let peers: BTreeMap<u64, String> = (1..=3).map(|id| (id, format!("host h{id}, process {id}"))).collect();
    let mut job = Job::new(rules(1, 4));
    for id in [2, 3] {
        job.tell(Event::Joined(id, ProcessInfo { holds: holds(4, 40), peers: peers.clone(), ..member(id) }));
    }
    job.come(5);
    // The one that is missing may yet compute by a lease of the service before.
    job.pass(LOST / 2);
    job.is(Phase::Waiting, 0);
    job.pass(LOST / 5);
    job.is(Phase::Running, 5);
    assert_eq!(
        job.why(),
        "host h1, process 1 did not come back to the restarted rendezvous; host h5, process 5 joined"
    );
    for (peers, missing) in [(peers, "host h3, process 3"), (BTreeMap::new(), "1 member of generation 1")] {
        let mut job = Job::running(rules(1, 3), 3);
        let placement = job.restart(rules(1, 3));
        job.tell(Event::Joined(1, ProcessInfo { peers, ..computing(1, &placement) }));
        job.tell(Event::Joined(2, computing(2, &placement)));
        job.pass_with(LOST - 100, &[1, 2]);
        job.is(Phase::Running, 1);
        job.pass_with(100, &[1, 2]);
        job.is(Phase::Over, 1);
        assert_eq!(job.why(), format!("{missing} did not come back to the restarted rendezvous within 10.0 s"));
    }
}

#[test]
fn a_claim_that_is_not_a_whole_generation_is_not_adopted() {
    let mut job = Job::running(rules(2, 3), 2);
    let placement = job.restart(rules(1, 3));
    let stranger = computing(7, &placement);
    let mut half = computing(1, &placement);
    half.computing.as_mut().unwrap().blocks.pop();
    let mut gap = computing(2, &placement);
    gap.computing.as_mut().unwrap().blocks[0].replicas = 1..4;
    for who in [stranger, half, gap] {
        job.tell(Event::Joined(who.id, who));
        job.is(Phase::Waiting, 0);
    }
    [7, 1, 2].iter().for_each(|id| drop(job.tell(Event::Ready(*id, ready_of(1)))));
    job.is(Phase::Running, 2);
}

#[test]
fn a_member_that_reconnects_and_computes_no_longer_ends_the_generation() {
    let mut job = Job::running(rules(1, 4), 2);
    job.tell(Event::Joined(20, member(2)));
    job.is(Phase::Over, 1);
    assert_eq!(job.why(), "host h2, process 2 left generation 1");
    job.ready(&[1]);
    job.is(Phase::Running, 2);
}

#[test]
fn a_member_that_computes_in_a_later_generation_ends_the_running_one() {
    let mut job = Job::running(rules(1, 4), 2);
    let mut later = job.roster.view().placement();
    later.generation = 5;
    job.tell(Event::Joined(3, computing(3, &later)));
    job.is(Phase::Over, 1);
    job.ready(&[1, 2]);
    job.is(Phase::Over, 1);
    job.tell(Event::Ready(3, ready_of(5)));
    job.pass(SETTLE);
    job.is(Phase::Running, 6);
    assert_eq!(job.ids(), [1, 3, 2]);
}

#[test]
fn a_member_that_computes_in_an_earlier_generation_takes_part_once_it_is_ready() {
    let mut job = Job::new(rules(1, 3));
    job.tell(Event::Joined(1, ProcessInfo { latest_generation: 5, ..member(1) }));
    job.pass(SETTLE);
    job.is(Phase::Running, 6);
    let earlier = Placement { generation: 5, ..job.roster.view().placement() };
    job.tell(Event::Joined(2, computing(2, &earlier)));
    job.pass(2 * SETTLE);
    job.is(Phase::Running, 6);
    job.tell(Event::Ready(2, ready_of(5)));
    job.is(Phase::Running, 6);
    job.pass(SETTLE);
    job.is(Phase::Ending, 6);
}

#[test]
fn what_a_member_says_of_itself_when_it_reconnects_is_announced() {
    let mut job = Job::running(rules(1, 1), 2);
    job.tell(Event::Joined(20, ProcessInfo { draining: true, ..member(2) }));
    job.is(Phase::Running, 1);
    assert!(job.announced.last().unwrap().members[1].draining);
}

#[test]
fn a_generation_that_a_wrong_holder_claims_does_not_overflow_the_next_one() {
    let mut job = Job::new(rules(1, 2));
    job.roster = Roster::new(rules(1, 2), job.start).elected(job.start, u64::MAX);
    job.come(1);
    // Until nobody from before the election can be on the way.
    job.pass(LOST);
    job.pass(SETTLE);
    job.is(Phase::Running, u64::MAX / 2 + 1);
}

#[test]
fn an_elected_leader_begins_the_first_generation_when_nobody_from_before_can_be_on_the_way() {
    for (led_for, waits) in [(0, true), (60_000, false)] {
        let mut job = Job::new(rules(1, 1));
        let since = job.start;
        job.start += Duration::from_millis(led_for);
        job.roster = Roster::new(rules(1, 1), job.start).elected(since, 0);
        job.come(1);
        job.pass(SETTLE);
        assert_eq!(job.roster.view().phase == Phase::Waiting, waits, "{led_for}");
        job.pass(LOST);
        job.is(Phase::Running, 1);
    }
}

#[test]
fn a_member_that_never_comes_back_to_an_old_service_is_named() {
    let mut job = Job::new(rules(1, 4));
    job.pass(2 * LOST);
    let peers = BTreeMap::from([1, 2].map(|id| (id, format!("host h{id}, process {id}"))));
    job.tell(Event::Joined(1, ProcessInfo { holds: holds(4, 40), peers, ..member(1) }));
    job.pass(LOST);
    job.is(Phase::Running, 5);
    assert!(job.why().contains("host h2, process 2 did not come back to the restarted rendezvous"), "{}", job.why());
}
