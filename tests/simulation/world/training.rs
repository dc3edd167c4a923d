//! A member in a generation: it connects, agrees on the state to begin with, and computes step after step.

use super::engine::{Contribution, Key, Kind};
use super::member::{Held, Outcome, Stage, Trained};
use super::{Event, World};
use crate::rendezvous::membership::{MembershipView, StateVersion};

impl World {
    pub(super) fn enter(&mut self, who: usize, view: &MembershipView) {
        let placement = view.placement();
        self.processes[who].shared.state.lock().own.computing = Some(placement.clone());
        assert!(placement.rank(self.processes[who].id).is_some(), "who enters has a part");
        let engine = self.engine(&placement);
        self.processes[who].engine = Some(engine);
        self.work(who, Key { engine, kind: Kind::Connect }, 1..=100);
    }

    pub(super) fn work(&mut self, who: usize, key: Key, time: std::ops::RangeInclusive<u64>) {
        let time = self.random.within(time);
        let process = &mut self.processes[who];
        process.turn += 1;
        process.stage = Stage::Working(key);
        let turn = process.turn;
        self.after(time, Event::Arrive { who, turn });
    }

    /// It comes to the collective that it worked for.
    pub(super) fn arrive(&mut self, who: usize, turn: u64) {
        let process = &self.processes[who];
        let Stage::Working(key) = process.stage else { return };
        if process.turn != turn || process.is_over() {
            return;
        }
        if process.cut > self.now {
            return self.at(process.cut, Event::Arrive { who, turn });
        }
        if self.is_disturbed(who) {
            return self.fail(who, "the generation is over");
        }
        let lost = std::mem::take(&mut self.processes[who].failing_devices).min(self.processes[who].devices - 1);
        if lost > 0 && matches!(key.kind, Kind::Step(_)) {
            self.processes[who].devices -= lost;
            self.close_engine(who);
            return self.part(who, Some("device 0 failed".into()));
        }
        let process = &self.processes[who];
        let ends = process.shared.state.lock().is_ending();
        let (held, state) = (self.held(who), process.state);
        self.processes[who].stage = Stage::In(key);
        self.meet(who, key, Contribution { held, state, ends });
    }

    /// All have come to a collective.
    pub(super) fn proceed(&mut self, who: usize, key: Key) {
        let all = self.result(who, key);
        let next = |kind| Key { kind, ..key };
        match key.kind {
            Kind::Connect => self.work(who, next(Kind::Agree), 1..=5),
            Kind::Agree => self.agree(who, key, &all),
            Kind::Origin => {
                let newest = self.newest(who, key);
                let source = newest.map_or(0, |(source, _)| source);
                if newest.is_none_or(|(_, held)| held != self.held(who)) {
                    self.processes[who].state = all[source].1.state;
                }
                self.await_lease(who, newest.is_none());
            }
            Kind::Validation(_) => self.close_epoch(who),
            Kind::Step(step) => {
                self.judge_step(who, key, step, &all);
                let ends = all.iter().any(|(_, it)| it.ends);
                self.processes[who].stage = Stage::Confirming { ends };
                self.look(who);
            }
        }
    }

    /// The rank and the version of the state that a generation begins with; `None` for that on the disk.
    pub(super) fn newest(&mut self, who: usize, key: Key) -> Option<(usize, Held)> {
        let all = self.result(who, Key { kind: Kind::Agree, ..key });
        let newest = all.iter().map(|(_, it)| it.held.0.generation).max().unwrap_or_default();
        let source = all.iter().position(|(_, it)| it.held.0.generation == newest).unwrap_or_default();
        (newest > 0).then(|| (source, all[source].1.held))
    }

    /// What members compare before they begin.
    pub(super) fn held(&self, who: usize) -> Held {
        let process = &self.processes[who];
        (process.holds, process.state.map_or(0, |state| state.epoch))
    }

    pub(super) fn agree(&mut self, who: usize, key: Key, all: &[(usize, Contribution)]) {
        let newest = self.newest(who, key);
        let leads = all[0].0 == who;
        if newest.is_none() {
            self.processes[who].has_lock = false;
        }
        if newest.is_none() && leads {
            match self.read_disk(who) {
                Ok(state) => self.processes[who].state = state,
                Err(why) => return self.leave(who, Some(why.clone()), Outcome::Failed(why)),
            }
        }
        if newest.is_some_and(|(_, held)| all.iter().all(|(_, it)| it.held == held)) {
            return self.await_lease(who, false);
        }
        self.work(who, Key { kind: Kind::Origin, ..key }, 5..=200);
    }

    pub(super) fn await_lease(&mut self, who: usize, is_from_disk: bool) {
        self.processes[who].stage = Stage::Beginning { is_from_disk };
        self.look(who);
    }

    pub(super) fn begin(&mut self, who: usize, is_from_disk: bool) {
        let Some(generation) = self.processes[who].placement().map(|it| it.generation) else { return };
        let process = &mut self.processes[who];
        let start = Trained { step: 0, epoch: 0, weights: 0 };
        let state = process.state.unwrap_or(start);
        if is_from_disk && state.epoch >= self.plan.epochs {
            return self.leave(who, None, Outcome::Complete(Some(state)));
        }
        (process.state, process.generation, process.has_lock) = (Some(state), generation, true);
        process.holds = StateVersion { generation, step: state.step as u64 };
        process.is_first_step = true;
        self.judge_begin(who, generation, state);
        self.next_step(who);
    }

    pub(super) fn next_step(&mut self, who: usize) {
        let process = &self.processes[who];
        let Trained { step, epoch, .. } = process.state.expect("it has begun");
        let Some(engine) = process.engine else { return };
        if epoch >= self.plan.epochs {
            return self.finish(who);
        }
        if step >= (epoch + 1) * self.plan.steps {
            return self.work(who, Key { engine, kind: Kind::Validation(epoch) }, 20..=400);
        }
        let is_slow = self.plan.calm_at() < u64::MAX && self.random.once_in(20);
        let most = if is_slow { 2_000 } else { self.plan.step };
        self.work(who, Key { engine, kind: Kind::Step(step + 1) }, 20..=most);
    }

    pub(super) fn close_epoch(&mut self, who: usize) {
        let process = &mut self.processes[who];
        process.state.iter_mut().for_each(|state| state.epoch += 1);
        self.save(who, false);
    }

    /// The first member saves, once its checkpoint before is written; then all go on.
    pub(super) fn save(&mut self, who: usize, ends: bool) {
        if self.is_first(who) {
            if self.processes[who].write.is_some() {
                self.processes[who].stage = Stage::Slot { ends };
                return;
            }
            let state = self.processes[who].state.expect("it is in a generation");
            self.write(who, state, false);
        }
        self.go_on(who, ends);
    }

    pub(super) fn is_first(&self, who: usize) -> bool {
        self.processes[who].placement().is_some_and(|it| it.rank(self.processes[who].id) == Some(0))
    }

    pub(super) fn commit(&mut self, who: usize, ends: bool) {
        self.judge_commit(who);
        let process = &mut self.processes[who];
        process.is_first_step = false;
        let state = process.state.expect("it was committed");
        process.shared.state.lock().progress.step = state.step as u64;
        if state.step.is_multiple_of(self.plan.every) { self.save(who, ends) } else { self.go_on(who, ends) }
    }

    pub(super) fn go_on(&mut self, who: usize, ends: bool) {
        if ends { self.settle(who) } else { self.next_step(who) }
    }
}
