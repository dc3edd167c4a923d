//! What must hold at every event, and at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::World;
use super::engine::{Contribution, Key};
use super::member::{Outcome, Process, Stage, Trained};
use crate::random::mix;
use crate::rendezvous::clock::Instant;
use crate::rendezvous::membership::{Event, MemberStatus, MembershipView, Phase, Placement, SessionId, StateVersion};

/// Changes of generation that the last faults may cause when they have ended.
const CHANGES: u64 = 40;

#[derive(Debug, Default)]
pub struct Judge {
    world: usize,
    /// The weights after each step, as they must be.
    weights: Vec<u64>,
    placements: BTreeMap<u64, Placement>,
    /// Who committed a step in each generation, and where each began.
    committed: BTreeMap<u64, BTreeSet<u64>>,
    begun: BTreeMap<u64, Trained>,
    /// The log that first members write: the last step of it.
    logged: usize,
    /// Steps of checkpoints that were acknowledged.
    saved: BTreeSet<usize>,
    /// What the present service was told last of each session: the member, and what it holds if it is ready.
    told: BTreeMap<SessionId, (u64, Option<StateVersion>)>,
    /// The greatest generation that the present service announced.
    latest: u64,
    /// Who leaves, as the present service said.
    leaving: BTreeSet<u64>,
    /// Whether a leaver hands its state over in the generation that has begun.
    must_end: bool,
    /// Until when each member has an excuse for silence.
    pub ailing: BTreeMap<u64, u64>,
    pub excused: Option<u64>,
    /// Until when a service is stopped, which is no excuse for what it counts itself.
    pub paused: Option<u64>,
    /// Causes that were judged.
    pub whys: BTreeSet<String>,
    calm_generation: Option<u64>,
}

impl Judge {
    pub fn new(world: usize, steps: usize) -> Self {
        let mut weights = vec![0];
        (1..=steps).for_each(|step| weights.push(chain(weights[step - 1], step, world)));
        Self { world, weights, ..Self::default() }
    }

    pub fn service_restarted(&mut self) {
        self.told.clear();
        self.leaving.clear();
        (self.latest, self.must_end) = (0, false);
    }

    /// A member may be silent until then.
    pub fn ail(&mut self, id: u64, until: u64) {
        let known = self.ailing.entry(id).or_default();
        *known = until.max(*known);
    }

    pub fn excuse(&mut self, until: u64) {
        self.excused = self.excused.max(Some(until));
    }

    pub fn pause(&mut self, until: u64) {
        self.paused = self.paused.max(Some(until));
    }

    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Joined(session, who) => {
                self.told.retain(|_, (id, _)| *id != who.id);
                self.told.insert(*session, (who.id, who.computing.is_none().then_some(who.holds)));
            }
            Event::Ready(session, ready) => drop(self.told.entry(*session).and_modify(|it| it.1 = Some(ready.holds))),
            Event::Left(session, _) | Event::Closed(session, _) => drop(self.told.remove(session)),
            _ => {}
        }
    }

    fn is_right(&self, state: Trained) {
        assert_eq!(state.weights, self.weights[state.step], "every sample once: {state:?}");
    }
}

fn has_lease(process: &Process) -> bool {
    process.shared.state.lock().leased_until.is_some_and(|until| Instant::now() < until)
}

/// The weights after one more step, to which each of the `replicas` has given its samples.
fn chain(weights: u64, step: usize, replicas: usize) -> u64 {
    (0..replicas).fold(weights, |sum, replica| mix(sum ^ mix((step * 1_000 + replica) as u64)))
}

impl World {
    /// The promises of an announcement.
    pub(super) fn judge_view(&mut self, view: &MembershipView) {
        let judge = &mut self.judge;
        assert!(!view.why.contains('\n') && view.why.len() < 3000);
        assert!(view.generation >= judge.latest, "numbers grow: {view:?}");
        let is_new = view.generation > judge.latest;
        judge.latest = view.generation;
        let is_last = std::mem::take(&mut judge.must_end);
        assert!(!is_last || view.phase == Phase::Ending, "a generation with a leaver ends at once: {view:?}");
        let leaving = view.members.iter().filter(|it| it.draining).map(|it| it.id).collect();
        let forgotten = view.members.iter().find(|it| !it.draining && judge.leaving.contains(&it.id));
        assert!(forgotten.is_none(), "whoever was asked to leave leaves: {view:?}");
        judge.leaving = leaving;
        let is_adopted = view.why.contains("restarted");
        if view.phase == Phase::Running && is_new && !is_adopted {
            self.judge_beginning(view);
        }
        self.judge_causes(view);
    }

    fn judge_beginning(&mut self, view: &MembershipView) {
        let placement = view.placement();
        assert!(placement.covers(self.judge.world), "each replica once: {placement:?}");
        if self.is_calm {
            let first = *self.judge.calm_generation.get_or_insert(placement.generation);
            assert!(placement.generation < first + CHANGES, "nothing changes without a cause: {}", view.why);
        }
        let held: BTreeMap<_, _> = self.judge.told.values().copied().collect();
        for block in &placement.blocks {
            assert!(block.devices > 0 && block.replicas.len() >= block.devices, "{placement:?}");
            assert!(block.devices <= self.processes[block.id as usize - 1].devices, "it has so many: {placement:?}");
            let holds = held.get(&block.id).copied().flatten();
            assert!(holds.is_some(), "{} is lost or not ready: {view:?}", block.id);
            let heard = self.processes[block.id as usize - 1].shared.state.lock().own.latest_generation;
            let entered = self.processes[block.id as usize - 1].holds.generation;
            assert!(heard.max(entered) < view.generation, "{} heard of {heard} before: {view:?}", block.id);
        }
        let there = |id: &u64| view.members.iter().any(|entry| entry.id == *id);
        let newest = held.iter().filter(|(id, _)| there(id)).filter_map(|(_, holds)| *holds).max();
        let part = |id: &u64| placement.rank(*id).is_some();
        let ours = held.iter().filter(|(id, _)| part(id)).filter_map(|(_, holds)| *holds).max();
        let (leaves, stays): (Vec<&MemberStatus>, Vec<_>) =
            view.members.iter().filter(|it| part(&it.id)).partition(|it| it.draining);
        assert!(stays.len() <= self.plan.max, "no more than there are places: {view:?}");
        if let Some(leaver) = leaves.first() {
            assert_eq!(held[&leaver.id], newest, "a leaver takes part: {view:?}");
            self.judge.must_end = true;
        }
        assert_eq!(ours, newest, "the newest state is in the generation: {view:?}");
    }

    /// One number belongs to one placement, unless all who knew of another one are gone, or silent for so long that
    /// they have no lease.
    fn judge_placement(&mut self, placement: &Placement) {
        let generation = placement.generation;
        let Some(known) = self.judge.placements.insert(generation, placement.clone()) else { return };
        if known != *placement {
            let lives = |id: u64| {
                let process = &self.processes[id as usize - 1];
                !process.is_over() && has_lease(process)
            };
            assert!(
                !known.blocks.iter().any(|it| lives(it.id)),
                "one number, two placements: {known:?}, {placement:?}"
            );
            self.judge.committed.split_off(&generation);
            self.judge.begun.split_off(&generation);
            self.judge.placements.split_off(&(generation + 1));
        }
    }

    /// All members of a generation begin with the same state, and none that was acknowledged is lost.
    pub(super) fn judge_begin(&mut self, who: usize, generation: u64, state: Trained) {
        let placement = self.processes[who].placement().expect("it has entered it");
        self.judge_placement(&placement);
        self.judge.is_right(state);
        let first = *self.judge.begun.entry(generation).or_insert(state);
        assert_eq!(first, state, "one beginning of {generation}");
        self.say(|| format!("process {} begins {generation} after step {}", self.processes[who].id, state.step));
        let reports = &mut self.processes[who].reports;
        if reports.last().is_some_and(|last| *last < state.step) {
            // It was given the state by others, and keeps nothing from before.
            reports.clear();
        }
        if self.processes[who].placement().is_some_and(|it| it.rank(self.processes[who].id) == Some(0)) {
            // It continues the log from the state, adds what it knows, and drops what was not committed.
            let is_known = |step| self.processes[who].reports.contains(&step);
            let missing = (self.judge.logged + 1..=state.step).find(|step| !is_known(*step));
            // Whoever was given the state does not know the step that the first member before was about to log.
            let is_last = self.processes[who].reports.is_empty() && missing == Some(state.step);
            assert!(missing.is_none() || is_last, "step {missing:?} is in no log");
            self.judge.logged = state.step;
            self.open_store(who);
        }
        self.processes[who].reports.retain(|step| *step <= state.step);
    }

    /// The members of a step have the same weights, and the samples of all replicas.
    pub(super) fn judge_step(&mut self, who: usize, key: Key, step: usize, all: &[(usize, Contribution)]) {
        let placement = &self.engines[key.engine].placement;
        let replicas: usize = placement.blocks.iter().map(|block| block.replicas.len()).sum();
        let state = self.processes[who].state.expect("it is in a generation");
        assert!(all.iter().all(|(_, it)| it.state == Some(state)), "the replicas differ before step {step}: {all:?}");
        let weights = chain(state.weights, step, replicas);
        self.processes[who].result = Some(Trained { step, weights, ..state });
    }

    /// One generation computes: none commits a step after a later one has.
    pub(super) fn judge_commit(&mut self, who: usize) {
        let process = &mut self.processes[who];
        let generation = process.placement().map_or(0, |it| it.generation);
        let state = process.result.take().expect("it has a result");
        process.state = Some(state);
        let id = process.id;
        process.reports.insert(state.step);
        // Those who stay away from an elected leader may have computed under later numbers, as long as they do no more.
        let lives = |id: &u64| {
            let other = &self.processes[*id as usize - 1];
            !other.is_over() && (self.plan.addresses == 1 || has_lease(other))
        };
        let later = self.judge.committed.range(generation + 1..).find(|(_, who)| who.iter().any(lives));
        assert!(later.is_none(), "{id} commits step {} in generation {generation}, after {later:?}", state.step);
        self.judge.committed.entry(generation).or_default().insert(id);
        self.judge.is_right(state);
        self.say(|| format!("process {id} commits step {} in {generation}", state.step));
        if self.processes[who].placement().is_some_and(|it| it.rank(id) == Some(0)) {
            assert_eq!(state.step, self.judge.logged + 1, "every step is in the log once");
            self.judge.logged = state.step;
        }
    }

    /// What was acknowledged reads.
    pub(super) fn judge_saved(&mut self, state: Trained, path: &Path) {
        self.judge.is_right(state);
        self.say(|| format!("checkpoint {state:?} is saved"));
        // Whoever died while it replaced this one has set it aside, and the next start puts it back.
        let mut places = [path.to_path_buf(), path.with_extension("old")].into_iter();
        assert!(places.any(|it| it.join("manifest.json").exists()), "{path:?} was acknowledged");
        self.judge.saved.insert(state.step);
    }

    pub(super) fn judge_read(&mut self, found: Option<Trained>) {
        assert!(found.is_some() || self.judge.saved.is_empty(), "an acknowledged checkpoint reads");
        found.iter().for_each(|state| self.judge.is_right(*state));
        self.say(|| format!("checkpoint {found:?} is read"));
    }

    /// Nothing is left to happen but what an operator may do.
    pub(super) fn is_settled(&self) -> bool {
        !self.plan.is_attended() || self.is_complete()
    }

    /// All have ended, and alike.
    pub(super) fn judge_end(&mut self) {
        let mut verdicts = BTreeSet::new();
        let (steps, epochs) = (self.judge.weights.len() - 1, self.plan.epochs);
        for process in &self.processes {
            match process.outcome.as_ref() {
                None => panic!("{} waits without limit at {:?}", process.id, process.stage),
                Some(Outcome::Complete(state)) => {
                    let state = state.expect("a complete run has a state");
                    assert_eq!((state.step, state.epoch), (steps, epochs), "a complete run has all steps");
                }
                Some(Outcome::Lost(why)) if why.contains("complete") => panic!("{} failed: {why}", process.id),
                Some(Outcome::Lost(why)) if why.contains("--elastic asks") => drop(verdicts.insert(why.clone())),
                Some(_) => {}
            }
            assert!(process.stage == Stage::Over || process.outcome == Some(Outcome::Killed));
        }
        assert!(verdicts.len() <= 1, "one verdict: {verdicts:?}");
        if self.is_complete() {
            let last = self.disk.latest().expect("a complete run has a checkpoint");
            assert_eq!((last.step, last.epoch), (steps, epochs), "a complete run has its last checkpoint");
            assert_eq!(self.judge.logged, steps, "a complete run has all steps in its log");
        } else {
            assert!(!self.plan.is_attended(), "an attended run is completed");
        }
    }
}
