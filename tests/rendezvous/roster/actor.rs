//! A well-behaved member of a simulated job.

use std::collections::BTreeMap;

use kiln::launch::rendezvous::bulletin::{
    Bulletin, Event, Phase, Placement, ProcessInfo, Ready, SessionId, StateVersion,
};

/// A well-behaved member.
#[derive(Debug, Clone)]
pub(super) struct Actor {
    pub(super) id: u64,
    pub(super) session: SessionId,
    pub(super) devices: usize,
    pub(super) holds: StateVersion,
    pub(super) heard: u64,
    pub(super) computing: Option<Placement>,
    /// The seat and the generation to come for which it connected last.
    pub(super) connected: (SessionId, u64),
    pub(super) draining: bool,
    /// It neither hears nor says anything until then.
    pub(super) deaf_until: u64,
    pub(super) gone: bool,
}

impl Actor {
    pub(super) fn introduction(&self) -> ProcessInfo {
        ProcessInfo {
            id: self.id,
            rank: None,
            host: format!("h{}", self.id),
            process: self.id as u32,
            devices: self.devices,
            configuration: BTreeMap::new(),
            holds: self.holds,
            latest_generation: self.heard,
            computing: self.computing.clone(),
            draining: self.draining,
            peers: BTreeMap::new(),
        }
    }

    pub(super) fn ready(&mut self, reason: Option<&str>) -> Option<Event> {
        let generation = self.computing.take()?.generation;
        let reason = reason.map(Into::into);
        Some(Event::Ready(self.session, Ready { generation, holds: self.holds, devices: self.devices, reason }))
    }

    pub(super) fn connect(&mut self, bulletin: &Bulletin) -> Option<Event> {
        let pending = bulletin.pending.as_ref().filter(|pending| pending.rank(self.id).is_some())?;
        let attempt = (self.session, pending.generation);
        (std::mem::replace(&mut self.connected, attempt) != attempt).then_some(Event::Connected(attempt.0, attempt.1))
    }

    /// What it does when it hears `bulletin`.
    pub(super) fn answer(&mut self, bulletin: &Bulletin) -> Option<Event> {
        let placement = bulletin.placement();
        let part = placement.rank(self.id).is_some();
        let begins = matches!(bulletin.phase, Phase::Running | Phase::Ending) && bulletin.generation > self.heard;
        self.heard = self.heard.max(bulletin.generation);
        self.draining |= bulletin.members.iter().any(|entry| entry.id == self.id && entry.draining);
        match &self.computing {
            None if begins && part => self.computing = Some(placement),
            None if self.draining && (!part || bulletin.phase == Phase::Waiting) => {
                return Some(Event::Left(self.session, None));
            }
            Some(mine) if mine.generation == bulletin.generation => match bulletin.phase {
                Phase::Running => {}
                // Its first step may be what hands a state over.
                Phase::Ending if self.holds.generation < bulletin.generation => {}
                _ => return self.ready(None),
            },
            Some(_) => return self.ready(None),
            None => {}
        }
        None
    }
}
