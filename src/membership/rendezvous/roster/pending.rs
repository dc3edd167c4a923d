//! The pending generation: new members connect with the members of the running generation, which compute meanwhile.
//!
//! Connecting takes as long as the slowest link and may fail. So the running generation ends for new members only when
//! all members of the next one are connected. A member that is not connected in time stays in reserve, and is tried
//! again after the same time. After a loss the next generation connects without this, since its members wait anyway.

use std::collections::BTreeSet;
use std::time::Instant;

use super::generation::{as_candidates, elapsed, joined};
use super::{Member, Roster};
use crate::rendezvous::membership::{Phase, Placement, SessionId};
use crate::rendezvous::placement::{Block, Candidate, fit, place};
use crate::rendezvous::sentence;

/// A generation that may begin once its members are connected.
#[derive(Debug)]
pub(super) struct PendingGeneration {
    /// With a number that only this attempt to connect uses.
    pub placement: Placement,
    /// The ids of the members that have reported their connections.
    connected: BTreeSet<u64>,
    pub since: Instant,
}

impl PendingGeneration {
    fn is_connected(&self) -> bool {
        self.placement.blocks.iter().all(|block| self.connected.contains(&block.id))
    }
}

impl Roster {
    /// The causes to end the running generation for new members, once these are connected; none before.
    pub(super) fn consider_pending(&mut self, now: Instant) -> Vec<String> {
        let candidates = self.candidates();
        let places = fit(self.rules.world, &as_candidates(&candidates)).len();
        let joins = |member: &&&Member| member.rank.is_none() && member.computing.is_none();
        let causes: Vec<_> = candidates[..places].iter().filter(joins).map(|member| joined(member)).collect();
        let blocks = if causes.is_empty() { Vec::new() } else { self.blocks(&self.chosen()) };
        let current = self.pending.as_ref().map_or(&[][..], |pending| &pending.placement.blocks);
        if current != blocks {
            self.changed = true;
            self.pending = (!blocks.is_empty()).then(|| {
                self.greatest += 1;
                let placement = Placement { generation: self.greatest, blocks };
                PendingGeneration { placement, connected: BTreeSet::new(), since: now }
            });
        }
        let Some(pending) = &self.pending else { return Vec::new() };
        if pending.is_connected() {
            return causes;
        }
        if elapsed(pending.since, now) >= self.rules.ready_timeout {
            let why = format!("not connected within {}", sentence::span(self.rules.ready_timeout));
            self.give_up_pending(pending.placement.generation, &why, now);
        }
        Vec::new()
    }

    pub(super) fn note_connected(&mut self, session: SessionId, generation: u64, now: Instant) -> Option<()> {
        let id = self.heard_from(session, now)?.info.id;
        let pending = self.pending.as_mut().filter(|pending| pending.placement.generation == generation)?;
        pending.connected.insert(id);
        Some(())
    }

    /// Gives up the pending `generation`, if it is still pending, since its members could not connect. Its last new
    /// member stays in reserve; if there are several, the next attempts show which one cannot be connected.
    pub(super) fn give_up_pending(&mut self, generation: u64, why: &str, now: Instant) {
        let Some(pending) = self.pending.take_if(|it| it.placement.generation == generation) else { return };
        self.changed = true;
        let has_part = |member: &&mut Member| pending.placement.rank(member.info.id).is_some();
        let last = self.members.iter_mut().filter(|member| member.rank.is_none()).rfind(has_part);
        if let Some(member) = last {
            member.reserved_until = Some(now + self.rules.ready_timeout);
            let (name, span) = (member.name(), sentence::span(self.rules.ready_timeout));
            tracing::warn!("{name} stays in reserve for {span}, and the run continues without it: {why}");
        }
    }

    /// Whether `member` can take part in the next generation without delaying it.
    pub(super) fn is_available(&self, member: &Member) -> bool {
        let is_reserved = member.reserved_until.is_some_and(|until| until > self.last_event);
        let has_part = |it: &PendingGeneration| it.is_connected() && it.placement.rank(member.info.id).is_some();
        let is_awaited = self.phase != Phase::Running && self.pending.as_ref().is_some_and(|it| !has_part(it));
        member.rank.is_some() || !is_reserved && !is_awaited
    }

    pub(super) fn blocks(&self, chosen: &[Candidate]) -> Vec<Block> {
        let before: Vec<_> = self.placement.blocks.iter().map(|block| (block.id, block.replicas.clone())).collect();
        place(self.rules.world, chosen, &before)
    }

    /// The placement of the next generation, of `chosen`: the pending one, if it is connected and the same.
    pub(super) fn next_placement(&mut self, chosen: &[Candidate]) -> Placement {
        let blocks = self.blocks(chosen);
        let is_same = |it: &PendingGeneration| {
            it.is_connected() && it.placement.blocks == blocks && it.placement.generation == self.greatest
        };
        if !self.pending.take().is_some_and(|pending| is_same(&pending)) {
            self.greatest += 1;
        }
        Placement { generation: self.greatest, blocks }
    }
}
