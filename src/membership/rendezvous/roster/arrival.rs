//! Processes that come: new members, members that have reconnected, and members that are ready for a generation.

use std::time::Instant;

use super::{Arrivals, Member, Roster};
use crate::rendezvous::MOST_MEMBERS;
use crate::rendezvous::eligibility;
use crate::rendezvous::membership::{Phase, Placement, ProcessInfo, Ready, SessionId};
use crate::rendezvous::refusal::Refusal;

impl Roster {
    pub(super) fn admit(&mut self, session: SessionId, mut info: ProcessInfo, now: Instant) -> Result<(), Refusal> {
        if self.rules.strict {
            self.admit_rank(&info)?;
        }
        eligibility::examine(&info, self.members.iter().map(|member| &member.info))?;
        self.ended.clone().map_or(Ok(()), Err)?;
        let placement = info.computing.take().filter(|_| !self.rules.strict);
        let peers = std::mem::take(&mut info.peers);
        if self.placement.generation == 0 || self.is_young(now) {
            self.expected_back.extend(peers.into_iter().take(MOST_MEMBERS));
        }
        let claimed = placement.as_ref().map(|it| it.generation);
        self.greatest = self.greatest.max(info.latest_generation).max(info.holds.generation).max(claimed.unwrap_or(0));
        let known = placement.as_ref() == Some(&self.placement);
        let (computing, rank) = (claimed.map(|it| if known { it } else { 0 }), self.placement.rank(info.id));
        let (progress, evidence) = Default::default();
        let (joined_at, last_heard, reserved_until) = (now, now, None);
        let is_new = self.insert(Member {
            session,
            info,
            computing,
            rank,
            progress,
            joined_at,
            reserved_until,
            last_heard,
            evidence,
        });
        if let Some(placement) = placement.filter(|_| !known) {
            self.check_claim(session, placement, now);
        }
        if is_new && self.members.iter().any(|member| member.session == session && member.rank.is_none()) {
            self.note_arrival(now);
        }
        Ok(())
    }

    /// Adds `member`, or replaces its earlier session; returns whether it could not take part before and can now.
    fn insert(&mut self, mut member: Member) -> bool {
        let Some(old) = self.members.iter_mut().find(|old| old.info.id == member.info.id) else {
            self.members.push(member);
            self.changed = true;
            return true;
        };
        // Its connections for the pending generation ended with its earlier session.
        self.changed |= self.pending.take_if(|pending| pending.placement.rank(member.info.id).is_some()).is_some();
        // The request to leave may not have reached it.
        member.info.draining |= old.info.draining;
        self.changed |= member.info.draining != old.info.draining || member.info.devices != old.info.devices;
        let is_new = old.computing.is_some() && member.computing.is_none();
        (member.progress, member.reserved_until) = (std::mem::take(&mut old.progress), old.reserved_until);
        *old = member;
        is_new
    }

    fn note_arrival(&mut self, now: Instant) {
        let first = self.arrivals.filter(|_| !self.is_settled(now)).map_or(now, |arrivals| arrivals.first);
        self.arrivals = Some(Arrivals { first, last: now });
    }

    /// Handles a member that computes in a generation other than the roster's.
    fn check_claim(&mut self, session: SessionId, placement: Placement, now: Instant) {
        let generation = placement.generation;
        let Some(member) = self.members.iter_mut().find(|member| member.session == session) else { return };
        let part = placement.rank(member.info.id).is_some();
        if self.placement.generation == 0 && generation == self.greatest && part && placement.covers(self.rules.world) {
            // If other members compute in another generation, `fault` ends this one at once.
            member.computing = Some(generation);
            self.members.iter_mut().for_each(|member| member.rank = placement.rank(member.info.id));
            self.placement = placement;
            let since = if self.is_elected { self.created } else { now };
            (self.returning_since, self.short_since) = (Some(since), None);
            self.causes.add("the rendezvous was restarted");
            self.causes.close();
            self.enter(Phase::Running, now);
        } else if generation >= self.placement.generation {
            let cause = format!("{} computes in a different generation {generation}", member.name());
            self.break_off(cause, now);
        }
    }

    pub(super) fn get_ready(&mut self, session: SessionId, ready: Ready, now: Instant) -> Option<()> {
        let latest = self.greatest;
        let member = self.heard_from(session, now)?;
        if member.computing.is_some_and(|computing| ready.generation < computing) {
            // It was sent before the current generation began.
            return None;
        }
        let new = member.computing.take().is_some() && member.rank.is_none();
        (member.info.holds, member.info.devices) = (ready.holds, ready.devices);
        member.info.holds.generation = ready.holds.generation.min(latest);
        let cause = ready.reason.map(|reason| eligibility::failed(&member.info, &reason));
        let part = member.rank.is_some();
        if new {
            self.note_arrival(now);
        }
        if let Some(cause) = cause.filter(|_| part) {
            self.break_off(cause, now);
        }
        Some(())
    }
}
