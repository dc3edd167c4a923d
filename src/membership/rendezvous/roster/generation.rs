//! When a generation of an elastic job ends, which members take part in the next one, and when it begins.
//!
//! This part of the [`roster`](super) acts on its state and on the time; it makes at most one transition per call, so
//! that each of them is announced.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Member, Roster};
use crate::rendezvous::membership::{Action, Phase, Placement, SessionId, lease};
use crate::rendezvous::placement::{Candidate, fit};
use crate::rendezvous::refusal::Refusal;
use crate::rendezvous::sentence;

/// How long to wait for evidence of a loss after a member reported trouble.
pub(crate) const TROUBLE_GRACE: Duration = Duration::from_millis(300);
/// New members delay a generation at most by this multiple of the time to settle.
const MOST_SETTLES: u32 = 4;

impl Roster {
    pub(super) fn advance(&mut self, now: Instant) -> Option<Action> {
        if self.rules.strict {
            self.begin_when_all_joined(now);
            return self.verdict(now).map(|verdict| self.decide(verdict));
        }
        self.remove_silent(now);
        if self.absent_count() == 0 {
            self.returning_since = None;
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

    pub(super) fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Ending)
    }

    pub(super) fn enter(&mut self, phase: Phase, now: Instant) {
        (self.phase, self.since, self.changed) = (phase, now, true);
    }

    pub(super) fn break_off(&mut self, cause: String, now: Instant) {
        if self.is_active() {
            self.trouble = None;
            self.causes.add(cause);
            self.enter(Phase::Over, now);
        }
    }

    /// Whether no member has joined lately, or the wait for more has reached its limit.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        let settle = self.rules.settle;
        self.arrivals.is_none_or(|it| {
            elapsed(it.last, now) >= settle || elapsed(it.first, now) >= settle.saturating_mul(MOST_SETTLES)
        })
    }

    fn remove_silent(&mut self, now: Instant) {
        let silent = |member: &&Member| elapsed(member.last_heard, now) > self.rules.lost_after;
        let silence = |member: &Member| {
            let how = sentence::span(elapsed(member.last_heard, now));
            (member.session, format!("{} was lost: no sign of life for {how}", member.name()))
        };
        let lost: Vec<_> = self.members.iter().filter(silent).map(silence).collect();
        lost.into_iter().for_each(|(session, cause)| self.remove(session, Some(cause), now));
    }

    /// How many members of the generation are missing, lost or not yet reconnected to a restarted service.
    fn absent_count(&self) -> usize {
        let there = self.members.iter().filter(|member| member.rank.is_some()).count();
        self.placement.blocks.len().saturating_sub(there)
    }

    /// The members of generations before a restart that have not reconnected.
    fn missing(&self) -> Vec<String> {
        let is_here = |id: &u64| self.members.iter().any(|member| member.info.id == *id);
        self.expected_back.iter().filter(|(id, _)| !is_here(id)).map(|(_, name)| sentence::line(name, 200)).collect()
    }

    /// Adds the restart of the service to the causes of its first generation.
    fn note_restart(&mut self) {
        let is_back = self.members.iter().any(|member| member.info.holds.generation > 0);
        if self.placement.generation > 0 || !is_back {
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
        self.returning_since.is_some_and(|since| elapsed(since, now) < self.return_time())
    }

    /// How long the members of a generation from before a restart are expected back. Those of a leader notice its loss
    /// before another one is elected, or soon after.
    fn return_time(&self) -> Duration {
        if self.is_elected { lease(self.rules.lost_after) } else { self.rules.lost_after }
    }

    /// Whether leases of a service before this one may still be valid.
    pub(super) fn is_young(&self, now: Instant) -> bool {
        elapsed(self.created, now) < lease(self.rules.lost_after)
    }

    /// Whether members from before a restart may still compute or, if this service was elected, unknown ones may still
    /// arrive.
    fn awaits_missing(&self, now: Instant) -> bool {
        let may_be_first = self.is_elected && self.placement.generation == 0;
        self.is_young(now) && (may_be_first || !self.missing().is_empty())
    }

    /// Why the generation must be broken off, if it must.
    fn fault(&self, now: Instant) -> Option<String> {
        let Placement { generation, .. } = self.placement;
        let mut part = self.members.iter().filter(|member| member.rank.is_some());
        match (self.phase, &self.trouble) {
            (Phase::Waiting | Phase::Over | Phase::Complete, _) => None,
            _ if self.returning_since.is_some() && !self.awaits_return(now) => {
                let (missing, limit) = (self.missing(), sentence::span(self.return_time()));
                let names = if missing.is_empty() {
                    format!("{} of generation {generation}", count(self.absent_count()))
                } else {
                    missing.join(" and ")
                };
                Some(format!("{names} did not come back to the restarted rendezvous within {limit}"))
            }
            (_, Some((reported, what))) if elapsed(*reported, now) >= TROUBLE_GRACE => Some(what.clone()),
            (Phase::Running, _) => {
                let left = part.find(|member| member.computing != Some(generation))?;
                Some(format!("{} left generation {generation}", left.name()))
            }
            (Phase::Ending, _) if elapsed(self.since, now) >= self.rules.ready_timeout => {
                let (late, limit) =
                    (part.find(|member| member.computing.is_some())?, sentence::span(self.rules.ready_timeout));
                Some(format!("{} did not finish its step within {limit}", late.name()))
            }
            (Phase::Ending, _) => None,
        }
    }

    /// Ends the running generation for members that leave, or for new members that are connected for the next one.
    fn consider_end(&mut self, now: Instant) {
        let leaves = |member: &&Member| member.rank.is_some() && member.info.draining;
        let leavers = self.members.iter().filter(leaves);
        let mut causes: Vec<_> = leavers.map(|member| format!("{} leaves", member.name())).collect();
        let may_join = self.is_settled(now) || self.candidates().len() >= self.rules.max;
        if causes.is_empty() && may_join && !self.awaits_return(now) {
            causes = self.consider_pending(now);
        }
        if !causes.is_empty() {
            causes.into_iter().for_each(|cause| self.causes.add(cause));
            self.enter(Phase::Ending, now);
        }
    }

    fn consider_beginning(&mut self, now: Instant) -> Option<Action> {
        if self.awaits_return(now) || self.awaits_missing(now) {
            return None;
        }
        let (chosen, candidates) = (self.chosen(), self.candidates().len());
        let unready = self.unready(&chosen);
        if candidates < self.rules.min.max(1) || chosen.is_empty() {
            if self.phase == Phase::Waiting || unready.is_empty() {
                return self.wait_for_more(now);
            }
        } else {
            self.short_since = None;
            if unready.is_empty() && (self.is_settled(now) || candidates >= self.rules.max) {
                self.begin(&chosen, now);
            }
        }
        self.remove_late(&unready, now);
        None
    }

    /// The members that could compute, in order of seniority, at most `rules.max`. Unavailable members are skipped,
    /// unless there are too few others.
    pub(super) fn candidates(&self) -> Vec<&Member> {
        let able = |member: &&Member| !member.info.draining && member.info.devices > 0;
        let mut candidates: Vec<_> = self.members.iter().filter(able).collect();
        let available = |member: &&Member| self.is_available(member);
        if candidates.iter().copied().filter(available).count() >= self.rules.min.max(1) {
            candidates.retain(available);
        }
        // After a restart of the service, the state shows which process was a member before.
        candidates.sort_by_key(|member| (member.rank.is_none(), Reverse(member.info.holds.generation)));
        candidates.truncate(self.rules.max);
        candidates
    }

    /// The members of the next generation, by seniority; one of them must hold the newest state.
    pub(super) fn chosen(&self) -> Vec<Candidate> {
        let Self { rules, members, .. } = self;
        let candidates = self.candidates();
        let mut chosen = fit(rules.world, &as_candidates(&candidates));
        let held = candidates[..chosen.len()].iter().map(|member| member.info.holds).max();
        let able = members.iter().filter(|member| member.info.devices > 0);
        let newest = able.max_by_key(|member| (member.info.holds, !member.info.draining));
        match newest.filter(|newest| held.is_some_and(|held| newest.info.holds > held)) {
            // It leaves after handing its state over, so it gets one device; the receiver needs one too.
            Some(newest) if newest.info.draining && rules.world > 1 => {
                chosen.insert(0, Candidate { devices: 1, ..newest.candidate() });
            }
            Some(newest) if !newest.info.draining => {
                chosen = as_candidates(&candidates);
                chosen.retain(|it| it.id != newest.info.id);
                chosen.insert(0, newest.candidate());
                chosen.truncate(rules.max);
            }
            _ => {}
        }
        fit(rules.world, &chosen)
    }

    /// The members that still compute and must be ready before the next generation.
    fn unready(&self, chosen: &[Candidate]) -> Vec<SessionId> {
        let chosen: BTreeSet<_> = chosen.iter().map(|it| it.id).collect();
        let concerned = |member: &&Member| member.rank.is_some() || chosen.contains(&member.info.id);
        let unready = self.members.iter().filter(concerned).filter(|member| member.computing.is_some());
        unready.map(|member| member.session).collect()
    }

    fn remove_late(&mut self, unready: &[SessionId], now: Instant) {
        let Self { since, rules, .. } = self;
        let late = |member: &&Member| {
            unready.contains(&member.session) && elapsed(member.joined_at.max(*since), now) >= rules.ready_timeout
        };
        let limit = sentence::span(rules.ready_timeout);
        let cause = |member: &Member| format!("{} was removed: it did not get ready within {limit}", member.name());
        let late: Vec<_> = self.members.iter().filter(late).map(|member| (member.session, cause(member))).collect();
        late.into_iter().for_each(|(session, cause)| self.remove(session, Some(cause), now));
    }

    fn begin(&mut self, chosen: &[Candidate], now: Instant) {
        self.note_restart();
        let is_first = self.placement.generation == 0;
        self.placement = self.next_placement(chosen);
        for member in &mut self.members {
            let rank = self.placement.rank(member.info.id);
            if rank.is_some() {
                member.computing = Some(self.greatest);
                let is_back = is_first && member.info.holds.generation > 0;
                if member.rank.is_none() && !is_back {
                    self.causes.add(joined(member));
                }
            }
            member.rank = rank;
        }
        self.causes.close();
        self.expected_back.clear();
        (self.trouble, self.returning_since, self.arrivals) = (None, None, None);
        self.enter(Phase::Running, now);
    }

    fn wait_for_more(&mut self, now: Instant) -> Option<Action> {
        if self.phase != Phase::Waiting {
            self.enter(Phase::Waiting, now);
        }
        // No process has joined yet.
        if self.placement.generation == 0 && self.arrivals.is_none() {
            return None;
        }
        self.changed |= self.short_since.is_none();
        if elapsed(*self.short_since.get_or_insert(now), now) < self.rules.elastic_timeout {
            return None;
        }
        let limit = sentence::span(self.rules.elastic_timeout);
        Some(
            self.decide(format!("{}, and no further process came within {limit} (--elastic-timeout)", self.shortage())),
        )
    }

    fn decide(&mut self, verdict: String) -> Action {
        self.ended = Some(Refusal::transient(format!("the job is over: {verdict}")));
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

pub(super) fn as_candidates(members: &[&Member]) -> Vec<Candidate> {
    members.iter().map(|member| member.candidate()).collect()
}

pub(super) fn joined(member: &Member) -> String {
    format!("{} joined", member.name())
}

fn count(members: usize) -> String {
    format!("{members} {}", if members == 1 { "member" } else { "members" })
}
