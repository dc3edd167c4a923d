//! The process that holds the real roster: what `service_state.rs` and `session.rs` do, without threads.

use std::collections::{BTreeMap, BTreeSet};

use super::network::Parcel;
use super::{Event, World};
use crate::launch::rendezvous::bulletin::{Action, Bulletin, Event as Told, SessionId};
use crate::launch::rendezvous::refusal::Refusal;
use crate::launch::rendezvous::roster::Roster;
use crate::launch::rendezvous::wire::{FromMember, FromService};

const TICK: u64 = 250;
/// How long a removed member may keep its session.
const FAREWELL: u64 = 5_000;

#[derive(Debug, Default)]
pub struct Service {
    /// Counts the processes that held it.
    pub number: u64,
    pub is_up: bool,
    pub wakes: u64,
    /// Whether its machine is gone, so that nobody says that nobody listens.
    pub has_vanished: bool,
    pub roster: Option<Roster>,
    sessions: SessionId,
    latest: Option<FromService>,
    store: BTreeSet<String>,
    /// Requests that wait: by connection and id.
    waiting: BTreeMap<(usize, u64), Vec<String>>,
}

impl World {
    pub(super) fn start_service(&mut self, number: u64) {
        if self.service.is_up || number != self.service.number + 1 {
            return;
        }
        self.service = Service { number, is_up: true, ..Service::default() };
        self.judge.service_restarted();
        self.say(|| format!("service {number} starts"));
        self.after(TICK, Event::Tick { service: number });
    }

    /// The process of the service dies, or its machine is gone.
    pub(super) fn stop_service(&mut self, vanishes: bool) {
        self.say(|| "the service dies".into());
        (self.service.is_up, self.service.has_vanished) = (false, vanishes);
        for link in 0..self.connections.len() {
            if vanishes { self.vanish(link, true) } else { self.close(link, true) }
        }
    }

    pub(super) fn tick(&mut self, number: u64) {
        if number == self.service.number && self.service.is_up {
            self.tell(Told::Tick).ok();
            self.after(TICK, Event::Tick { service: number });
        }
    }

    pub(super) fn reach_service(&mut self, link: usize, parcel: Parcel) {
        self.messages += 1;
        let connection = &self.connections[link];
        if !connection.open[1] || connection.service != self.service.number || !self.service.is_up {
            return;
        }
        match (parcel, connection.session) {
            (Parcel::Introduction(info), None) => self.admit(link, info),
            (Parcel::Up(FromMember::Set { id, key, .. }), Some(_)) => {
                self.service.store.insert(key);
                self.answer(link, FromService::Value(id, Vec::new()));
                self.answer_waiting();
            }
            (Parcel::Up(FromMember::Get { id, keys, .. }), Some(_)) => {
                self.service.waiting.insert((link, id), keys);
                self.answer_waiting();
            }
            (Parcel::Up(message), Some(session)) => {
                let (beats, leaves) =
                    (matches!(message, FromMember::Beat(_)), matches!(message, FromMember::Leave(..)));
                message.events(session).into_iter().for_each(|event| drop(self.tell(event)));
                if beats {
                    self.answer(link, FromService::Alive);
                }
                if leaves {
                    self.connections[link].session = None;
                    self.close(link, true);
                }
            }
            _ => {}
        }
    }

    fn admit(&mut self, link: usize, info: crate::launch::rendezvous::bulletin::ProcessInfo) {
        let (rules, now) = (self.rules(), self.instant());
        let service = &mut self.service;
        service.sessions += 1;
        let session = service.sessions;
        service.roster.get_or_insert_with(|| Roster::new(rules, now));
        // Its own announcement is already one that it gets.
        self.connections[link].session = Some(session);
        match self.tell(Told::Joined(session, info)) {
            Ok(()) => self.soil(link),
            Err(refusal) => {
                self.connections[link].session = None;
                let roster = self.service.roster.as_ref().expect("it refused");
                let last = FromService::Bulletin(roster.bulletin());
                let is_complete = roster.is_complete_for(&refusal);
                self.answer(link, if is_complete { last } else { FromService::Refusal(refusal) });
            }
        }
    }

    fn answer(&mut self, link: usize, message: FromService) {
        self.send(link, false, Parcel::Down(message));
    }

    fn answer_waiting(&mut self) {
        let store = &self.service.store;
        let there = |(_, keys): &(&(usize, u64), &Vec<String>)| keys.iter().all(|key| store.contains(key));
        let found: Vec<(usize, u64)> = self.service.waiting.iter().filter(there).map(|(at, _)| *at).collect();
        for (link, id) in found {
            self.service.waiting.remove(&(link, id));
            self.answer(link, FromService::Value(id, Vec::new()));
        }
    }

    /// Tells the roster, and publishes what it announces.
    pub(super) fn tell(&mut self, event: Told) -> Result<(), Refusal> {
        let now = self.instant();
        let Some(roster) = &mut self.service.roster else { return Ok(()) };
        self.judge.note(&event);
        let mut answer = Ok(());
        for action in roster.handle(event, now) {
            match action {
                Action::Refuse(refusal) => answer = Err(refusal),
                Action::Welcome => {}
                Action::Announce(bulletin) => {
                    self.say(|| announcement(&bulletin));
                    self.judge_bulletin(&bulletin);
                    self.service.latest = Some(FromService::Bulletin(bulletin));
                    self.announce();
                }
                Action::Decide(verdict) => {
                    self.say(|| format!("verdict: {verdict}"));
                    self.service.latest = Some(FromService::Verdict(verdict));
                    self.announce();
                }
            }
            let Some(_) = &self.service.roster else { break };
        }
        answer
    }

    fn announce(&mut self) {
        let roster = self.service.roster.as_ref().expect("it announces");
        let members: BTreeSet<_> = roster.members.iter().map(|member| member.session).collect();
        for link in 0..self.connections.len() {
            let Connection { session, open, service, .. } = &self.connections[link];
            if let (Some(session), true, true) = (*session, open[1], *service == self.service.number) {
                if !members.contains(&session) {
                    self.after(FAREWELL, Event::Dismissal { link });
                }
                self.soil(link);
            }
        }
    }

    /// There is something new for this session; a slow one skips what was replaced meanwhile.
    fn soil(&mut self, link: usize) {
        if !std::mem::replace(&mut self.connections[link].is_dirty, true) {
            let delay = self.random.within(0..=3);
            self.after(delay, Event::Flush { link });
        }
    }

    pub(super) fn flush(&mut self, link: usize) {
        let is_current = self.connections[link].service == self.service.number && self.service.is_up;
        if std::mem::take(&mut self.connections[link].is_dirty) && is_current {
            let latest = self.service.latest.clone().unwrap_or(FromService::Nobody);
            self.answer(link, latest);
        }
    }

    /// The service notices that a connection has ended.
    pub(super) fn service_lost(&mut self, link: usize) {
        let Connection { session, service, .. } = self.connections[link];
        if let Some(session) = session.filter(|_| service == self.service.number && self.service.is_up) {
            self.tell(Told::Closed(session, "its connection closed".into())).ok();
        }
    }
}

use super::network::Connection;

fn announcement(bulletin: &Bulletin) -> String {
    let Bulletin { generation, phase, why, members, pending } = bulletin;
    let member = |it: &crate::launch::rendezvous::bulletin::MemberStatus| {
        format!("{}{}={:?}", it.id, if it.draining { "-" } else { "" }, it.replicas)
    };
    let members: Vec<_> = members.iter().map(member).collect();
    let pending = pending.as_ref().map(|it| it.generation);
    format!("bulletin: generation {generation} {phase:?} [{}] pending {pending:?}: {why}", members.join(" "))
}
