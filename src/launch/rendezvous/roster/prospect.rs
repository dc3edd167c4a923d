//! The generation to come: newcomers connect with the members of the running generation, which compute meanwhile.
//!
//! How long connecting takes is up to the slowest link, and it may never succeed. So a generation ends for newcomers
//! only once all members of the next one are connected; until then nobody waits for them. Whoever cannot be connected in
//! time stays in reserve, and is tried again after as long a time. A loss is another matter: the others wait anyway.

use std::collections::BTreeSet;
use std::time::Instant;

use super::generation::{elapsed, hosts, joined};
use super::{Member, Roster};
use crate::launch::rendezvous::bulletin::{Assembly, Phase, Seat};
use crate::launch::rendezvous::placement::{Block, Host, fit, place};
use crate::launch::rendezvous::sentence;

/// A generation that may begin once its members are connected.
#[derive(Debug)]
pub(super) struct Prospect {
    /// Its number is used once, for this attempt to connect.
    pub assembly: Assembly,
    /// Who said so, by id.
    connected: BTreeSet<u64>,
    since: Instant,
}

impl Prospect {
    fn is_connected(&self) -> bool {
        self.assembly.blocks.iter().all(|block| self.connected.contains(&block.id))
    }
}

impl Roster {
    /// The causes to end the running generation for newcomers, once they are connected.
    pub(super) fn consider_prospect(&mut self, now: Instant) -> Vec<String> {
        let candidates = self.candidates();
        let places = fit(self.rules.world, &hosts(&candidates)).len();
        let joins = |member: &&&Member| member.rank.is_none() && member.computing.is_none();
        let causes: Vec<_> = candidates[..places].iter().filter(joins).map(|member| joined(member)).collect();
        let blocks = if causes.is_empty() { Vec::new() } else { self.blocks(&self.chosen()) };
        let present = self.prospect.as_ref().map_or(&[][..], |prospect| &prospect.assembly.blocks);
        if present != blocks {
            self.changed = true;
            self.prospect = (!blocks.is_empty()).then(|| {
                self.greatest += 1;
                let assembly = Assembly { generation: self.greatest, blocks };
                Prospect { assembly, connected: BTreeSet::new(), since: now }
            });
        }
        let Some(prospect) = &self.prospect else { return Vec::new() };
        if prospect.is_connected() {
            return causes;
        }
        if elapsed(prospect.since, now) >= self.rules.patience {
            let why = format!("not connected within {}", sentence::span(self.rules.patience));
            self.give_up_prospect(prospect.assembly.generation, &why, now);
        }
        Vec::new()
    }

    pub(super) fn note_connected(&mut self, seat: Seat, generation: u64, now: Instant) -> Option<()> {
        let id = self.hear(seat, now)?.who.id;
        let prospect = self.prospect.as_mut().filter(|prospect| prospect.assembly.generation == generation)?;
        prospect.connected.insert(id);
        Some(())
    }

    /// The members of the prospect `generation`, if it is still one, could not connect. Its last newcomer stays in
    /// reserve: with several of them, the next attempts tell who is to blame.
    pub(super) fn give_up_prospect(&mut self, generation: u64, why: &str, now: Instant) {
        let Some(prospect) = self.prospect.take_if(|it| it.assembly.generation == generation) else { return };
        self.changed = true;
        let has_part = |member: &&mut Member| prospect.assembly.rank(member.who.id).is_some();
        let last = self.members.iter_mut().filter(|member| member.rank.is_none()).rfind(has_part);
        if let Some(member) = last {
            member.reserved = Some(now + self.rules.patience);
            let (name, span) = (member.name(), sentence::span(self.rules.patience));
            tracing::warn!("{name} stays in reserve for {span}, and the run goes on without it: {why}");
        }
    }

    /// Whether `member` may take part in the next generation without keeping the others waiting.
    pub(super) fn is_at_hand(&self, member: &Member) -> bool {
        let is_reserved = member.reserved.is_some_and(|until| until > self.awake);
        let has_part = |it: &Prospect| it.is_connected() && it.assembly.rank(member.who.id).is_some();
        let is_awaited = self.phase != Phase::Running && self.prospect.as_ref().is_some_and(|it| !has_part(it));
        member.rank.is_some() || !is_reserved && !is_awaited
    }

    /// Where replicas are placed in the next generation.
    pub(super) fn blocks(&self, hosts: &[Host]) -> Vec<Block> {
        let before: Vec<_> = self.assembly.blocks.iter().map(|block| (block.id, block.replicas.clone())).collect();
        place(self.rules.world, hosts, &before)
    }

    /// The generation of `hosts`: the prospect, where its members are those.
    pub(super) fn assemble(&mut self, hosts: &[Host]) -> Assembly {
        let blocks = self.blocks(hosts);
        let is_apt = |it: &Prospect| {
            it.is_connected() && it.assembly.blocks == blocks && it.assembly.generation == self.greatest
        };
        if !self.prospect.take().is_some_and(|prospect| is_apt(&prospect)) {
            self.greatest += 1;
        }
        Assembly { generation: self.greatest, blocks }
    }
}
