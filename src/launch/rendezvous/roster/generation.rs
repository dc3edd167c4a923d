//! When a generation of an elastic job ends, who takes part in the next one, and when it begins.
//!
//! The part of the [`roster`](super) that draws conclusions from what is known and from the passing of time; it
//! makes at most one transition at a time, so that each of them is announced.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Member, Roster};
use crate::launch::rendezvous::bulletin::{Action, Assembly, Phase, Seat};
use crate::launch::rendezvous::placement::{Host, fit};
use crate::launch::rendezvous::refusal::Refusal;
use crate::launch::rendezvous::sentence;

/// How long to wait for evidence of a loss after a member reported trouble.
pub const TROUBLE_GRACE: Duration = Duration::from_millis(300);
/// Arrivals are waited for at most so many times the time to settle.
const MOST_SETTLES: u32 = 4;

impl Roster {
    /// What can be concluded now.
    pub(super) fn weigh(&mut self, now: Instant) -> Option<Action> {
        if self.rules.strict {
            self.gather(now);
            return self.verdict(now).map(|verdict| self.decide(verdict));
        }
        self.lose_silent(now);
        if self.absent() == 0 {
            self.returning = None;
        }
        if let Some(cause) = self.fault(now) {
            self.break_off(cause, now);
        }
        match self.phase {
            Phase::Running => self.consider_end(now),
            Phase::Waiting | Phase::Ending | Phase::Over => return self.consider_beginning(now),
            Phase::Complete => {}
        }
        None
    }

    pub(super) fn at_work(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Ending)
    }

    pub(super) fn enter(&mut self, phase: Phase, now: Instant) {
        (self.phase, self.since, self.changed) = (phase, now, true);
    }

    pub(super) fn break_off(&mut self, cause: String, now: Instant) {
        if self.at_work() {
            self.trouble = None;
            self.causes.add(cause);
            self.enter(Phase::Over, now);
        }
    }

    /// Whether nobody came lately, or those who came were waited for long enough.
    pub(super) fn settled(&self, now: Instant) -> bool {
        let settle = self.rules.settle;
        self.arrivals.is_none_or(|it| {
            elapsed(it.last, now) >= settle || elapsed(it.first, now) >= settle.saturating_mul(MOST_SETTLES)
        })
    }

    fn lose_silent(&mut self, now: Instant) {
        let silent = |member: &&Member| elapsed(member.heard, now) > self.rules.lost_after;
        let silence = |member: &Member| {
            let how = sentence::span(elapsed(member.heard, now));
            (member.seat, format!("{} was lost: no sign of life for {how}", member.name()))
        };
        let lost: Vec<_> = self.members.iter().filter(silent).map(silence).collect();
        lost.into_iter().for_each(|(seat, cause)| self.remove(seat, Some(cause), now));
    }

    /// How many members of the generation are not there; some may be on their way back from a service that ended.
    fn absent(&self) -> usize {
        let there = self.members.iter().filter(|member| member.rank.is_some()).count();
        self.assembly.blocks.len().saturating_sub(there)
    }

    /// Those of a generation that another service led who are not here.
    fn missing(&self) -> Vec<String> {
        let is_here = |id: &u64| self.members.iter().any(|member| member.who.id == *id);
        self.expected.iter().filter(|(id, _)| !is_here(id)).map(|(_, name)| sentence::line(name, 200)).collect()
    }

    /// Nothing is known here of the generations before, but by those who come from them.
    fn note_restart(&mut self) {
        let is_back = self.members.iter().any(|member| member.who.standing.generation > 0);
        if self.assembly.generation > 0 || !is_back {
            return;
        }
        let missing = self.missing();
        if missing.is_empty() {
            self.causes.add("the rendezvous was restarted");
        }
        for name in missing {
            self.causes.add(format!("{name} did not come back to the restarted rendezvous"));
        }
    }

    fn awaits_return(&self, now: Instant) -> bool {
        self.returning.is_some_and(|since| elapsed(since, now) < self.rules.lost_after)
    }

    /// Why the generation cannot go on, if it cannot.
    fn fault(&self, now: Instant) -> Option<String> {
        let Assembly { generation, .. } = self.assembly;
        let mut part = self.members.iter().filter(|member| member.rank.is_some());
        match (self.phase, &self.trouble) {
            (Phase::Waiting | Phase::Over | Phase::Complete, _) => None,
            _ if self.returning.is_some() && !self.awaits_return(now) => {
                let (missing, limit) = (self.missing(), sentence::span(self.rules.lost_after));
                let who = if missing.is_empty() {
                    format!("{} of generation {generation}", count(self.absent()))
                } else {
                    missing.join(" and ")
                };
                Some(format!("{who} did not come back to the restarted rendezvous within {limit}"))
            }
            (_, Some((reported, what))) if elapsed(*reported, now) >= TROUBLE_GRACE => Some(what.clone()),
            (Phase::Running, _) => {
                let left = part.find(|member| member.computing != Some(generation))?;
                Some(format!("{} left generation {generation}", left.name()))
            }
            (Phase::Ending, _) if elapsed(self.since, now) >= self.rules.patience => {
                let (late, limit) =
                    (part.find(|member| member.computing.is_some())?, sentence::span(self.rules.patience));
                Some(format!("{} did not finish its step within {limit}", late.name()))
            }
            (Phase::Ending, _) => None,
        }
    }

    /// The running generation ends for those who leave, and for newcomers that are connected for the next one.
    fn consider_end(&mut self, now: Instant) {
        let leaves = |member: &&Member| member.rank.is_some() && member.who.draining;
        let leavers = self.members.iter().filter(leaves);
        let mut causes: Vec<_> = leavers.map(|member| format!("{} leaves", member.name())).collect();
        let may_join = self.settled(now) || self.candidates().len() >= self.rules.max;
        if causes.is_empty() && may_join && !self.awaits_return(now) {
            causes = self.consider_prospect(now);
        }
        if !causes.is_empty() {
            causes.into_iter().for_each(|cause| self.causes.add(cause));
            self.enter(Phase::Ending, now);
        }
    }

    fn consider_beginning(&mut self, now: Instant) -> Option<Action> {
        if self.awaits_return(now) {
            return None;
        }
        let (hosts, candidates) = (self.chosen(), self.candidates().len());
        let unready = self.unready(&hosts);
        if candidates < self.rules.min.max(1) || hosts.is_empty() {
            if self.phase == Phase::Waiting || unready.is_empty() {
                return self.fall_short(now);
            }
        } else {
            self.short = None;
            if unready.is_empty() && (self.settled(now) || candidates >= self.rules.max) {
                self.begin(&hosts, now);
            }
        }
        self.remove_late(&unready, now);
        None
    }

    /// Who could compute: in order of seniority, and no more than the job asks for. Nobody waits for those who are not at
    /// hand, unless there are too few without them.
    pub(super) fn candidates(&self) -> Vec<&Member> {
        let able = |member: &&Member| !member.who.draining && member.who.devices > 0;
        let mut candidates: Vec<_> = self.members.iter().filter(able).collect();
        let at_hand = |member: &&Member| self.is_at_hand(member);
        if candidates.iter().copied().filter(at_hand).count() >= self.rules.min.max(1) {
            candidates.retain(at_hand);
        }
        // After a restart of the service, what they hold tells who was a member before.
        candidates.sort_by_key(|member| (member.rank.is_none(), Reverse(member.who.standing.generation)));
        candidates.truncate(self.rules.max);
        candidates
    }

    /// Who takes part in the next generation, by seniority. The newest state must be among what they hold.
    pub(super) fn chosen(&self) -> Vec<Host> {
        let Self { rules, members, .. } = self;
        let candidates = self.candidates();
        let mut chosen = fit(rules.world, &hosts(&candidates));
        let held = candidates[..chosen.len()].iter().map(|member| member.who.standing).max();
        let able = members.iter().filter(|member| member.who.devices > 0);
        let newest = able.max_by_key(|member| (member.who.standing, !member.who.draining));
        match newest.filter(|newest| held.is_some_and(|held| newest.who.standing > held)) {
            // It only hands its state over, so one device is enough; somebody else must have one too.
            Some(newest) if newest.who.draining && rules.world > 1 => {
                chosen.insert(0, Host { devices: 1, ..newest.host() });
            }
            Some(newest) if !newest.who.draining => {
                chosen = hosts(&candidates);
                chosen.retain(|host| host.id != newest.who.id);
                chosen.insert(0, newest.host());
                chosen.truncate(rules.max);
            }
            _ => {}
        }
        fit(rules.world, &chosen)
    }

    /// Whom the next generation waits for.
    fn unready(&self, hosts: &[Host]) -> Vec<Seat> {
        let chosen: BTreeSet<_> = hosts.iter().map(|host| host.id).collect();
        let concerned = |member: &&Member| member.rank.is_some() || chosen.contains(&member.who.id);
        let unready = self.members.iter().filter(concerned).filter(|member| member.computing.is_some());
        unready.map(|member| member.seat).collect()
    }

    fn remove_late(&mut self, unready: &[Seat], now: Instant) {
        let Self { since, rules, .. } = self;
        let late = |member: &&Member| {
            unready.contains(&member.seat) && elapsed(member.came.max(*since), now) >= rules.patience
        };
        let limit = sentence::span(rules.patience);
        let cause = |member: &Member| format!("{} was removed: it did not get ready within {limit}", member.name());
        let late: Vec<_> = self.members.iter().filter(late).map(|member| (member.seat, cause(member))).collect();
        late.into_iter().for_each(|(seat, cause)| self.remove(seat, Some(cause), now));
    }

    fn begin(&mut self, hosts: &[Host], now: Instant) {
        self.note_restart();
        let is_first = self.assembly.generation == 0;
        self.assembly = self.assemble(hosts);
        for member in &mut self.members {
            let rank = self.assembly.rank(member.who.id);
            if rank.is_some() {
                member.computing = Some(self.greatest);
                let is_back = is_first && member.who.standing.generation > 0;
                if member.rank.is_none() && !is_back {
                    self.causes.add(joined(member));
                }
            }
            member.rank = rank;
        }
        self.causes.close();
        self.expected.clear();
        (self.trouble, self.returning, self.arrivals) = (None, None, None);
        self.enter(Phase::Running, now);
    }

    fn fall_short(&mut self, now: Instant) -> Option<Action> {
        if self.phase != Phase::Waiting {
            self.enter(Phase::Waiting, now);
        }
        // Nobody ever came.
        if self.assembly.generation == 0 && self.arrivals.is_none() {
            return None;
        }
        self.changed |= self.short.is_none();
        if elapsed(*self.short.get_or_insert(now), now) < self.rules.elastic_timeout {
            return None;
        }
        let limit = sentence::span(self.rules.elastic_timeout);
        Some(self.decide(format!("{}, and no more came within {limit} (--elastic-timeout)", self.shortage())))
    }

    fn decide(&mut self, verdict: String) -> Action {
        self.closed = Some(Refusal::passing(format!("the job is over: {verdict}")));
        Action::Decide(verdict)
    }

    pub(super) fn shortage(&self) -> String {
        let are = match self.candidates().len() {
            0 => "no member is".into(),
            1 => "1 member is".into(),
            several => format!("{several} members are"),
        };
        format!("{are} here, --elastic asks for at least {}", self.rules.min)
    }
}

pub(super) fn elapsed(since: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(since)
}

pub(super) fn hosts(members: &[&Member]) -> Vec<Host> {
    members.iter().map(|member| member.host()).collect()
}

pub(super) fn joined(member: &Member) -> String {
    format!("{} joined", member.name())
}

fn count(members: usize) -> String {
    format!("{members} {}", if members == 1 { "member" } else { "members" })
}
