//! The model of the engines of a generation: a collective completes once all members have come to it. Each then learns
//! it a little later, or never, if another one is gone by then; who waits in vain fails after the limit.

use std::collections::{BTreeMap, BTreeSet};

use super::member::{Held, Stage, Trained};
use super::{COLLECTIVE, Event, PATIENCE, World};
use crate::rendezvous::membership::Placement;

/// A collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Of its engine.
    pub engine: usize,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Connect,
    /// The versions of the states that members hold.
    Agree,
    /// A state from the member that holds the newest one, or from the disk.
    Origin,
    Step(usize),
    Validation(usize),
}

/// What a member brings.
#[derive(Debug, Clone)]
pub struct Contribution {
    pub held: Held,
    pub state: Option<Trained>,
    pub ends: bool,
}

#[derive(Debug, Default)]
pub struct Meeting {
    pub came: BTreeMap<usize, Contribution>,
    waiting: BTreeSet<usize>,
    is_complete: bool,
}

#[derive(Debug)]
pub struct Engine {
    pub placement: Placement,
    pub meetings: BTreeMap<Key, Meeting>,
    closed: BTreeSet<usize>,
}

impl World {
    /// The engine of a placement; two may have the same number, of two services.
    pub(super) fn engine(&mut self, placement: &Placement) -> usize {
        if let Some(known) = self.engines.iter().rposition(|engine| engine.placement == *placement) {
            return known;
        }
        let (meetings, closed) = Default::default();
        self.engines.push(Engine { placement: placement.clone(), meetings, closed });
        self.engines.len() - 1
    }

    pub(super) fn meet(&mut self, who: usize, key: Key, contribution: Contribution) {
        let first = !matches!(key.kind, Kind::Step(_)) || self.processes[who].is_first_step;
        let limit = COLLECTIVE * if first { PATIENCE } else { 1 };
        self.after(limit, Event::Collective { who, key, ok: false });
        let now = self.now;
        let engine = &mut self.engines[key.engine];
        let size = engine.placement.blocks.len();
        let is_broken = !engine.closed.is_empty();
        let meeting = engine.meetings.entry(key).or_default();
        meeting.came.insert(who, contribution);
        meeting.waiting.insert(who);
        // What those who have gone meanwhile had sent may be there, or not.
        if meeting.came.len() == size && !(is_broken && self.random.once_in(2)) {
            meeting.is_complete = true;
            for who in meeting.waiting.clone() {
                let at = self.processes[who].cut.max(now) + self.random.within(1..=self.plan.latency);
                self.at(at, Event::Collective { who, key, ok: true });
            }
        } else if is_broken {
            let delay = self.random.within(1..=50);
            self.after(delay, Event::Collective { who, key, ok: false });
        }
    }

    /// What the members brought, for one who learns that all have come.
    pub(super) fn result(&mut self, who: usize, key: Key) -> Vec<(usize, Contribution)> {
        let engine = &mut self.engines[key.engine];
        let meeting = engine.meetings.get_mut(&key).expect("it was there");
        meeting.waiting.remove(&who);
        let ids = engine.placement.blocks.iter().enumerate().map(|(rank, block)| (block.id, rank));
        let ranks: BTreeMap<u64, usize> = ids.collect();
        let mut came: Vec<_> = meeting.came.iter().map(|(who, it)| (*who, it.clone())).collect();
        came.sort_by_key(|(who, _)| ranks.get(&self.processes[*who].id));
        came
    }

    /// A member closes its connections with the others, or the system does for it.
    pub(super) fn close_engine(&mut self, who: usize) {
        let Some(engine) = self.processes[who].engine.map(|engine| &mut self.engines[engine]) else { return };
        if !engine.closed.insert(who) {
            return;
        }
        let mut fail = Vec::new();
        for (key, meeting) in &mut engine.meetings {
            meeting.waiting.remove(&who);
            fail.extend(meeting.waiting.iter().map(|other| (*other, *key, meeting.is_complete)));
        }
        for (other, key, is_complete) in fail {
            // What it had sent may be under way, or not.
            let is_lost = !is_complete || self.random.once_in(2);
            let delay = if is_complete { 0 } else { self.random.within(1..=50) };
            if is_lost && self.processes[who].cut <= self.now && self.processes[other].cut <= self.now {
                self.after(delay, Event::Collective { who: other, key, ok: false });
            }
        }
    }

    pub(super) fn collective(&mut self, who: usize, key: Key, ok: bool) {
        let process = &self.processes[who];
        if process.is_over() || !matches!(process.stage, Stage::In(current) if current == key) {
            return;
        }
        if ok { self.proceed(who, key) } else { self.fail(who, "a collective failed") }
    }
}
