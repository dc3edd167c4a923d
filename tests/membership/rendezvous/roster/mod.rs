//! The policy of an elastic job, without network and without waiting.

mod beginning;
mod changes;
mod losses;
mod nonsense;
mod pending;
mod restarts;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use kiln_membership::rendezvous::membership::{
    Action, Event, MembershipView, Phase, Placement, ProcessInfo, Progress, Ready, Rules, StateVersion,
};
use kiln_membership::rendezvous::refusal::Refusal;
use kiln_membership::rendezvous::roster::Roster;

const LOST: u64 = 10_000;
const TIMEOUT: u64 = 600_000;
const SETTLE: u64 = 1_000;
const PATIENCE: u64 = 60_000;
const GRACE: u64 = 300;

fn rules(min: usize, max: usize) -> Rules {
    let time = Duration::from_millis;
    Rules {
        min,
        max,
        world: 8,
        beat: time(1000),
        lost_after: time(LOST),
        elastic_timeout: time(TIMEOUT),
        settle: time(SETTLE),
        ready_timeout: time(PATIENCE),
        strict: false,
    }
}

/// Member `id` on host `h<id>`, process `<id>`, with one device.
fn member(id: u64) -> ProcessInfo {
    let configuration = BTreeMap::from([("batch_size".into(), "8".into()), ("epochs".into(), "2".into())]);
    ProcessInfo { id, host: format!("h{id}"), process: id as u32, devices: 1, configuration, ..ProcessInfo::default() }
}

fn holds(generation: u64, step: u64) -> StateVersion {
    StateVersion { generation, step }
}

/// A job in which time passes as the test says, in milliseconds. The seat of a member is its id unless said otherwise.
struct Job {
    roster: Roster,
    start: Instant,
    now: u64,
    announced: Vec<MembershipView>,
    /// Whether members connect for a generation to come as soon as they hear of it.
    connects: bool,
    verdict: Option<String>,
}

impl Job {
    fn new(rules: Rules) -> Self {
        let start = Instant::now();
        Self { roster: Roster::new(rules, start), start, now: 0, announced: Vec::new(), connects: true, verdict: None }
    }

    /// A job in which the members `1..=count` run generation 1.
    fn running(rules: Rules, count: u64) -> Self {
        let mut job = Self::new(rules);
        (1..=count).for_each(|id| drop(job.come(id)));
        job.pass(SETTLE);
        job.is(Phase::Running, 1);
        job
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        let actions = self.roster.handle(event, self.start + Duration::from_millis(self.now));
        for action in &actions {
            match action {
                Action::Announce(view) => {
                    self.announced.push(view.clone());
                    if let Some(pending) = view.pending.as_ref().filter(|_| self.connects) {
                        self.connect(pending);
                    }
                }
                Action::Decide(verdict) => assert!(self.verdict.replace(verdict.clone()).is_none(), "two verdicts"),
                Action::Welcome | Action::Refuse(_) => {}
            }
        }
        actions
    }

    /// All members of a generation to come are connected.
    fn connect(&mut self, pending: &Placement) {
        if self.roster.view().pending.as_ref() == Some(pending) {
            pending.blocks.iter().for_each(|it| drop(self.tell(Event::Connected(it.id, pending.generation))));
        }
    }

    fn come(&mut self, id: u64) -> Vec<Action> {
        self.tell(Event::Joined(id, member(id)))
    }

    fn refusal(&mut self, who: ProcessInfo) -> Refusal {
        let before = self.roster.view();
        let actions = self.tell(Event::Joined(99, who));
        assert_eq!(self.roster.view(), before, "a refusal changes nothing");
        match actions.as_slice() {
            [Action::Refuse(refusal)] => refusal.clone(),
            other => panic!("not a refusal: {other:?}"),
        }
    }

    /// Time passes with ticks, and with beats of all members.
    fn pass(&mut self, time: u64) {
        let sessions: Vec<_> = self.roster.view().members.iter().map(|entry| entry.id).collect();
        self.pass_with(time, &sessions);
    }

    /// Time passes with ticks, and with beats of `sessions` only.
    fn pass_with(&mut self, time: u64, sessions: &[u64]) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + 100).min(end);
            sessions.iter().for_each(|session| drop(self.tell(Event::Beat(*session, Progress::default()))));
            self.tell(Event::Tick);
        }
    }

    /// The members `ids` left the current generation, and hold its first step.
    fn ready(&mut self, ids: &[u64]) {
        let generation = self.roster.view().generation;
        ids.iter().for_each(|id| drop(self.ready_with(*id, holds(generation, generation), 1, None)));
    }

    fn ready_with(&mut self, id: u64, holds: StateVersion, devices: usize, reason: Option<&str>) -> Vec<Action> {
        let generation = self.roster.view().generation;
        self.tell(Event::Ready(id, Ready { generation, holds, devices, reason: reason.map(Into::into) }))
    }

    fn close(&mut self, session: u64) {
        self.tell(Event::Closed(session, "its connection closed".into()));
    }

    fn is(&self, phase: Phase, generation: u64) {
        let view = self.roster.view();
        assert_eq!((view.phase, view.generation), (phase, generation), "{view:?}");
    }

    fn why(&self) -> String {
        self.roster.view().why
    }

    /// `(id, replicas)` of those with a part.
    fn parts(&self) -> Vec<(u64, Range<usize>)> {
        let blocks = self.roster.view().placement().blocks;
        blocks.into_iter().map(|block| (block.id, block.replicas)).collect()
    }

    fn ids(&self) -> Vec<u64> {
        self.parts().into_iter().map(|(id, _)| id).collect()
    }

    /// Another service takes over; nobody is there yet.
    fn restart(&mut self, rules: Rules) -> Placement {
        let placement = self.roster.view().placement();
        self.roster = Roster::new(rules, self.start + Duration::from_millis(self.now));
        placement
    }
}

fn computing(id: u64, placement: &Placement) -> ProcessInfo {
    ProcessInfo { computing: Some(placement.clone()), latest_generation: placement.generation, ..member(id) }
}

fn ready_of(generation: u64) -> Ready {
    Ready { generation, holds: holds(generation, 1), devices: 1, reason: None }
}
