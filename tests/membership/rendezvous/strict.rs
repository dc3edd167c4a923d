//! The policy of a job of fixed membership, without network and without waiting.

use std::time::{Duration, Instant};

use kiln_membership::rendezvous::Terms;
use kiln_membership::rendezvous::membership::{Action, Event, MembershipView, Phase, ProcessInfo, Progress, Rules};
use kiln_membership::rendezvous::roster::Roster;
use kiln_membership::rendezvous::roster::strict::GRACE;
use kiln_membership::rendezvous::wire::FromMember;

use super::{introduction, terms};

mod chance;

const BEAT: u64 = 1000;
const TIMEOUT: u64 = 10_000;

/// A job of three, or of `size`, in which time passes as the test says, in milliseconds.
struct Court {
    roster: Roster,
    start: Instant,
    now: u64,
    verdict: Option<String>,
}

impl Court {
    fn empty() -> Self {
        Self::of(3)
    }

    fn of(size: usize) -> Self {
        let terms = Terms { timeout: Duration::from_millis(TIMEOUT), beat: Duration::from_millis(BEAT), ..terms(size) };
        let start = Instant::now();
        Self { roster: Roster::new(Rules::strict(&terms), start), start, now: 0, verdict: None }
    }

    fn at_work() -> Self {
        let mut court = Self::empty();
        (0..3).for_each(|rank| drop(court.tell(came(rank))));
        court
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        let actions = self.roster.handle(event, self.start + Duration::from_millis(self.now));
        for action in &actions {
            if let Action::Decide(verdict) = action {
                assert!(self.verdict.replace(verdict.clone()).is_none(), "two verdicts");
            }
        }
        actions
    }

    fn hear(&mut self, events: Vec<Event>) -> Vec<Action> {
        events.into_iter().flat_map(|event| self.tell(event)).collect()
    }

    /// Time passes with ticks, and with beats of the ranks that live.
    fn pass(&mut self, time: u64, alive: &[(u64, u64)]) {
        for _ in 0..time / 250 {
            self.now += 250;
            self.tell(Event::Tick);
            if self.now.is_multiple_of(BEAT) {
                alive.iter().for_each(|&(rank, count)| drop(self.tell(Event::Beat(rank, at(count)))));
            }
        }
    }
}

/// The process of a rank, whose seat is its rank.
fn came(rank: u64) -> Event {
    Event::Joined(rank, ProcessInfo { id: rank + 1, ..introduction(rank as usize) })
}

/// The process of another id that was given the same rank.
fn came_again(rank: u64) -> Event {
    Event::Joined(9, ProcessInfo { id: 9, ..introduction(rank as usize) })
}

/// What all are told before the beginning, and the ranks that it names.
fn missing(actions: &[Action]) -> &str {
    match actions {
        [Action::Announce(MembershipView { phase: Phase::Waiting, why, .. })] => why,
        [Action::Welcome, rest @ ..] => missing(rest),
        other => panic!("{other:?}"),
    }
}

/// The ranks of a job that begins.
fn roll(action: &Action) -> Option<Vec<String>> {
    let Action::Announce(view) = action else { return None };
    (view.phase == Phase::Running).then(|| view.members.iter().map(|it| it.host.clone()).collect())
}

fn trouble(rank: u64, doing: Progress, symptom: &str) -> Vec<Event> {
    FromMember::Trouble(doing, 1, symptom.into()).events(rank)
}

fn left(rank: u64, doing: Progress, reason: Option<&str>) -> Vec<Event> {
    FromMember::Leave(doing, reason.map(Into::into)).events(rank)
}

fn at(step: u64) -> Progress {
    Progress { activity: format!("step {step}"), step, ..Progress::default() }
}

const GRACE_MS: u64 = GRACE.as_millis() as u64;

type Story = fn(&mut Court);

#[test]
fn every_story_has_its_verdict() {
    let stories: &[(&str, Story, Option<&str>)] = &[
        ("all live", |court| court.pass(60_000, &[(0, 1), (1, 1), (2, 1)]), None),
        (
            "one dies",
            |court| {
                court.pass(2000, &[(0, 1), (1, 1), (2, 1)]);
                assert_eq!(court.tell(Event::Closed(2, "its connection closed".into())), []);
                assert_eq!(court.hear(trouble(1, at(7), "connection reset")), []);
                court.hear(trouble(0, at(7), "connection closed by peer"));
            },
            Some(
                "rank 2 (host host2, process 102) was lost at step 7: its connection closed; ranks 0-1 were at step 7",
            ),
        ),
        (
            "one dies, and nobody tells where",
            |court| {
                court.pass(2000, &[(0, 6), (1, 7), (2, 6)]);
                assert_eq!(court.tell(Event::Closed(2, "its connection closed".into())), []);
                court.pass(250, &[]);
            },
            Some(
                "rank 2 (host host2, process 102) was lost at step 7: its connection closed; rank 0 was at step 6; rank \
                 1 was at step 7",
            ),
        ),
        (
            "one dies, and another one fails for that",
            |court| {
                court.pass(2000, &[(0, 6), (1, 6), (2, 6)]);
                court.tell(Event::Closed(2, "its connection closed".into()));
                court.hear(left(0, at(7), Some("the engine broke")));
                court.hear(trouble(1, at(7), "connection reset"));
            },
            Some(
                "rank 2 (host host2, process 102) was lost at step 7: its connection closed; ranks 0-1 were at step 7",
            ),
        ),
        (
            "one fails",
            |court| drop(court.hear(left(1, at(4), Some("out of memory")))),
            Some("rank 1 (host host1, process 101) failed at step 4: out of memory"),
        ),
        (
            "one finishes and closes",
            |court| {
                court.hear(left(1, at(4), None));
                court.tell(Event::Closed(1, "its connection closed".into()));
                court.pass(60_000, &[(0, 5), (2, 5)]);
            },
            None,
        ),
        (
            "one falls silent",
            |court| court.pass(TIMEOUT + 500, &[(0, 1), (2, 1)]),
            Some(
                "rank 1 (host host1, process 101) was lost at step 1: no sign of life for 10.2 s; ranks 0, 2 were at \
                 step 1",
            ),
        ),
        (
            "one falls silent many steps after its last sign of life",
            |court| {
                court.pass(2000, &[(0, 1), (1, 1), (2, 1)]);
                court.pass(TIMEOUT + 500, &[(0, 70), (2, 70)]);
            },
            Some(
                "rank 1 (host host1, process 101) was lost at step 70: no sign of life for 10.2 s; ranks 0, 2 were at \
                 step 70",
            ),
        ),
        (
            "silence below the timeout means nothing",
            |court| {
                court.pass(TIMEOUT - 1000, &[(0, 1), (2, 1)]);
                court.pass(TIMEOUT - 1000, &[(0, 1), (1, 1), (2, 1)]);
            },
            None,
        ),
        (
            "trouble while one is silent",
            |court| {
                court.pass(5000, &[(0, 3), (2, 3)]);
                court.hear(trouble(0, at(3), "timed out"));
            },
            Some(
                "rank 1 (host host1, process 101) was lost at step 3: no sign of life for 5.0 s; ranks 0, 2 were at \
                 step 3",
            ),
        ),
        (
            "trouble before the death that caused it is known",
            |court| {
                court.pass(2000, &[(0, 3), (1, 3), (2, 3)]);
                court.hear(trouble(0, at(3), "connection closed by peer [rank 2]"));
                court.pass(GRACE_MS / 2, &[]);
                court.tell(Event::Closed(1, "its connection closed".into()));
                court.hear(trouble(2, at(3), "connection closed by peer [rank 1]"));
            },
            Some(
                "rank 1 (host host1, process 101) was lost at step 3: its connection closed; ranks 0, 2 were at step 3",
            ),
        ),
        (
            "trouble before the failure that caused it is told",
            |court| {
                court.hear(trouble(0, at(3), "connection closed by peer [rank 2]"));
                court.hear(left(1, at(3), Some("the loss is not finite")));
            },
            Some("rank 1 (host host1, process 101) failed at step 3: the loss is not finite"),
        ),
        (
            "trouble because one did not come",
            |court| {
                court.hear(trouble(0, at(9), "timed out"));
                court.pass(GRACE_MS, &[(1, 9), (2, 8)]);
            },
            Some(
                "rank 2 (host host2, process 102) did not come to step 9: still at step 8; rank 0 (host host0, process \
                 100) waited: timed out",
            ),
        ),
        (
            "trouble because one had finished",
            |court| {
                court.hear(left(2, at(8), None));
                court.hear(trouble(0, at(9), "timed out"));
                court.pass(GRACE_MS, &[(1, 9)]);
            },
            Some(
                "rank 2 (host host2, process 102) did not come to step 9: had finished already, last at step 8; rank \
                 0 (host host0, process 100) waited: timed out",
            ),
        ),
        (
            "trouble though all came",
            |court| {
                court.hear(trouble(0, at(9), "connection reset"));
                court.pass(GRACE_MS, &[(1, 9), (2, 9)]);
            },
            Some(
                "the connection between rank 0 (host host0, process 100) and its peers broke at step 9, though all \
                 processes are alive: connection reset",
            ),
        ),
        (
            "the service itself was stopped and continued",
            |court| {
                court.now += TIMEOUT * 3;
                court.tell(Event::Tick);
                court.pass(5000, &[(0, 1), (1, 1), (2, 1)]);
            },
            None,
        ),
    ];
    for (story, tell, verdict) in stories {
        let mut court = Court::at_work();
        tell(&mut court);
        assert_eq!(court.verdict.as_deref(), *verdict, "{story}");
    }
}

#[test]
fn the_first_verdict_stays() {
    let mut court = Court::at_work();
    court.tell(Event::Closed(2, "its connection closed".into()));
    court.pass(250, &[]);
    assert!(court.verdict.is_some());
    assert_eq!(court.tell(Event::Closed(1, "its connection closed".into())), []);
    assert_eq!(court.hear(left(0, at(1), Some("peer lost"))), []);
    assert!(matches!(&court.tell(came_again(1))[..], [Action::Refuse(it)] if it.reason.contains("is over")));
}

#[test]
fn no_rank_of_a_fixed_membership_can_be_asked_to_leave() {
    let mut court = Court::at_work();
    let actions = court.tell(Event::DrainRank(1));
    let [Action::Refuse(refusal)] = actions.as_slice() else { panic!("{actions:?}") };
    assert!(!refusal.transient && refusal.reason.contains("--elastic"), "{refusal:?}");
}

#[test]
fn the_missing_are_told_until_all_are_there() {
    let mut court = Court::empty();
    for (rank, named) in [(1, "ranks 0, 2"), (2, "rank 0")] {
        let actions = court.tell(came(rank));
        assert_eq!((&actions[0], missing(&actions)), (&Action::Welcome, named));
    }
    let actions = court.tell(came(0));
    assert_eq!((&actions[0], actions.len()), (&Action::Welcome, 2));
    assert_eq!(roll(&actions[1]), Some(vec!["host0".into(), "host1".into(), "host2".into()]));
    let parts: Vec<_> = court.roster.view().members.into_iter().map(|member| member.replicas).collect();
    assert_eq!(parts, [0..1, 1..2, 2..3]);
}

#[test]
fn of_many_late_processes_three_are_named() {
    for (size, more) in [(4, ""), (6, " and 2 more")] {
        let mut court = Court::of(size);
        (0..size as u64).for_each(|rank| drop(court.tell(came(rank))));
        court.hear(trouble(0, at(7), "timed out"));
        let alive: Vec<_> = (0..size as u64).map(|rank| (rank, if rank == 0 { 7 } else { 6 })).collect();
        court.pass(GRACE_MS, &alive);
        let verdict = court.verdict.unwrap();
        assert!(verdict.contains(&format!("rank 3 (host host3, process 103){more} did not come")), "{verdict}");
    }
}

#[test]
fn a_loss_after_trouble_is_told_when_others_had_time_to_be_lost_too() {
    let mut court = Court::at_work();
    court.hear(trouble(0, at(7), "connection reset"));
    assert_eq!(court.tell(Event::Closed(2, "its connection closed".into())), []);
    court.pass(250, &[]);
    assert!(court.verdict.unwrap().starts_with("rank 2 (host host2, process 102) was lost"));
}

#[test]
fn a_rank_is_given_once_and_free_again_when_its_process_goes_before_the_beginning() {
    let mut court = Court::empty();
    court.tell(came(1));
    let actions = court.tell(came_again(1));
    assert!(matches!(&actions[..], [Action::Refuse(it)] if it.reason.starts_with("rank 1 (host host1, process 101)")));
    assert_eq!(missing(&court.tell(Event::Closed(1, "its connection closed".into()))), "ranks 0-2");
    assert_eq!(court.tell(came(1))[0], Action::Welcome);
    // It leaves as one that has finished, or is in trouble, before anything began.
    assert_eq!(missing(&court.hear(left(1, at(0), None))), "ranks 0-2");
    court.tell(came(1));
    court.hear(trouble(1, at(0), "connection reset"));
    [0, 2].into_iter().for_each(|rank| drop(court.tell(came(rank))));
    court.pass(2 * GRACE_MS, &[(0, 0), (1, 0), (2, 0)]);
    assert_eq!(court.verdict, None);
}

#[test]
fn at_most_five_differing_settings_are_named() {
    let mut court = Court::empty();
    court.tell(came(1));
    let mut other = ProcessInfo { id: 3, ..introduction(2) };
    let mut refused = |keys: std::ops::Range<usize>| {
        keys.for_each(|key| drop(other.configuration.insert(format!("key{key}"), "x\ny".into())));
        let actions = court.tell(Event::Joined(3, other.clone()));
        let [Action::Refuse(refusal)] = &actions[..] else { panic!("{actions:?}") };
        refusal.clone()
    };
    let refusal = refused(0..5);
    assert!(refusal.reason.contains("key4 ") && !refusal.reason.contains("more settings"), "{}", refusal.reason);
    let refusal = refused(5..9);
    assert!(refusal.reason.starts_with("key0 is 'x y' on rank 2, not set on rank 1; "), "{}", refusal.reason);
    assert!(refusal.reason.contains("key4 ") && !refusal.reason.contains("key5 "), "{}", refusal.reason);
    assert!(refusal.reason.contains("4 more settings differ") && !refusal.reason.contains('\n'));
}
