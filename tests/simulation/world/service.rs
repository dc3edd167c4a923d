//! A process that holds the real roster: what `service_state.rs` and `session.rs` do, without threads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::limits::reserves;
use super::network::Parcel;
use super::{Event, World};
use crate::rendezvous::election::Voter;
use crate::rendezvous::membership::{Action, Event as Told, MembershipView, Phase, SessionId};
use crate::rendezvous::refusal::Refusal;
use crate::rendezvous::roster::Roster;
use crate::rendezvous::wire::{FromMember, FromService};

const TICK: u64 = 250;
/// How long a removed member may keep its session.
const LEAVE_TIMEOUT: u64 = 5_000;

#[derive(Debug, Default)]
pub struct Service {
    /// Counts the processes that held this address.
    pub number: u64,
    pub is_up: bool,
    pub wakes: u64,
    /// Until when its machine is cut off.
    pub cut: u64,
    /// Whether its machine is gone, so that nobody says that nobody listens; and whether it comes back.
    pub has_vanished: bool,
    pub is_lost: bool,
    pub roster: Option<Roster>,
    /// If there are several.
    pub voter: Option<Voter>,
    pub leads_since: Option<std::time::Instant>,
    pub tenure: u64,
    /// The latest generation that a leader told.
    pub known: u64,
    sessions: SessionId,
    past_sessions: SessionId,
    pub latest: Option<FromService>,
    store: BTreeSet<String>,
    /// Requests that wait: by connection and id.
    waiting: BTreeMap<(usize, u64), Vec<String>>,
}

impl World {
    pub(super) fn start_service(&mut self, at: usize, number: u64) {
        let Service { cut, is_lost, .. } = self.services[at];
        if self.services[at].is_up || is_lost || number != self.services[at].number + 1 {
            return;
        }
        self.tenures += 1;
        let tenure = self.tenures;
        self.services[at] = Service { number, is_up: true, cut, tenure, ..Service::default() };
        if self.plan.addresses > 1 {
            self.services[at].voter = Some(self.new_voter(at));
        } else {
            self.judge.service_restarted();
        }
        self.say(|| format!("service {number} starts at address {at}"));
        self.after(TICK, Event::Tick { at, service: number });
    }

    /// The process of the service dies, or its machine is gone.
    pub(super) fn stop_service(&mut self, at: usize, vanishes: bool) {
        self.say(|| format!("the service at address {at} dies"));
        (self.services[at].is_up, self.services[at].has_vanished) = (false, vanishes);
        for link in 0..self.connections.len() {
            if self.connections[link].at == at {
                if vanishes { self.vanish(link, true) } else { self.close(link, true) }
            }
        }
    }

    pub(super) fn tick(&mut self, at: usize, number: u64) {
        if number == self.services[at].number && self.services[at].is_up {
            self.tell(at, Told::Tick).ok();
            self.judge_waiting(at);
            self.claim(at);
            self.after(TICK, Event::Tick { at, service: number });
        }
    }

    /// What a leader knows of its run ends with its lease.
    fn follow_election(&mut self, at: usize) {
        let now = self.instant(at);
        let since = self.services[at].voter.as_ref().and_then(|voter| voter.leads(now)).map(|(since, _)| since);
        if self.services[at].leads_since == since {
            return;
        }
        self.tenures += 1;
        let tenure = self.tenures;
        let service = &mut self.services[at];
        (service.leads_since, service.roster, service.past_sessions) = (since, None, service.sessions);
        (service.tenure, service.latest) = (tenure, None);
        service.store.clear();
        service.waiting.clear();
        if since.is_some() {
            self.judge.service_restarted();
        }
        self.say(|| format!("address {at} {}", if since.is_some() { "leads" } else { "leads no more" }));
        for link in 0..self.connections.len() {
            if self.connections[link].at == at && self.connections[link].session.is_some() {
                self.soil(link);
            }
        }
    }

    /// How long what is said on a connection holds, in the service's time; `None` if it does not lead any more.
    fn validity(&mut self, link: usize) -> Option<Duration> {
        let at = self.connections[link].at;
        self.follow_election(at);
        let Some(voter) = &self.services[at].voter else { return Some(Duration::MAX) };
        let now = self.instant(at);
        let is_present = self.connections[link].session.is_none_or(|it| it > self.services[at].past_sessions);
        voter.leads(now).filter(|_| is_present).map(|(_, until)| until - now)
    }

    pub(super) fn reach_service(&mut self, link: usize, parcel: Parcel) {
        self.messages += 1;
        let connection = &self.connections[link];
        let at = connection.at;
        if !connection.open[1] || connection.service != self.services[at].number || !self.services[at].is_up {
            return;
        }
        let Some(validity) = self.validity(link) else {
            if self.connections[link].session.is_none() {
                return self.answer(link, FromService::Elsewhere);
            }
            return self.close(link, true);
        };
        match (parcel, self.connections[link].session) {
            (Parcel::Introduction(info), None) => self.admit(link, info),
            (Parcel::Up(FromMember::Set { id, key, .. }), Some(_)) => {
                self.services[at].store.insert(key);
                self.answer(link, FromService::Value(id, Vec::new()));
                self.answer_waiting(at);
            }
            (Parcel::Up(FromMember::Get { id, keys, .. }), Some(_)) => {
                self.services[at].waiting.insert((link, id), keys);
                self.answer_waiting(at);
            }
            (Parcel::Up(message), Some(session)) => {
                let (beats, leaves) =
                    (matches!(message, FromMember::Beat(_)), matches!(message, FromMember::Leave(..)));
                message.events(session).into_iter().for_each(|event| drop(self.tell(at, event)));
                if beats {
                    self.answer(link, FromService::Alive(validity));
                }
                if leaves {
                    self.connections[link].session = None;
                    self.close(link, true);
                }
            }
            _ => {}
        }
    }

    fn admit(&mut self, link: usize, info: crate::rendezvous::membership::ProcessInfo) {
        let at = self.connections[link].at;
        let (rules, now) = (self.rules(), self.instant(at));
        let service = &mut self.services[at];
        service.sessions += 1;
        let session = service.sessions;
        let (since, known) = (service.leads_since, service.known);
        service.roster.get_or_insert_with(|| {
            let roster = Roster::new(rules, now);
            if let Some(since) = since { roster.elected(since, known) } else { roster }
        });
        self.tell(at, Told::Tick).ok();
        // Its own announcement is already one that it gets.
        self.connections[link].session = Some(session);
        match self.tell(at, Told::Joined(session, info)) {
            Ok(()) => self.soil(link),
            Err(refusal) => {
                self.connections[link].session = None;
                let roster = self.services[at].roster.as_ref().expect("it refused");
                let last = FromService::View(roster.view());
                let is_complete = roster.is_complete_for(&refusal);
                self.answer(link, if is_complete { last } else { FromService::Refusal(refusal) });
            }
        }
    }

    fn answer(&mut self, link: usize, message: FromService) {
        self.send(link, false, Parcel::Down(message));
    }

    fn answer_waiting(&mut self, at: usize) {
        let store = &self.services[at].store;
        let there = |(_, keys): &(&(usize, u64), &Vec<String>)| keys.iter().all(|key| store.contains(key));
        let found: Vec<(usize, u64)> = self.services[at].waiting.iter().filter(there).map(|(at, _)| *at).collect();
        for (link, id) in found {
            self.services[at].waiting.remove(&(link, id));
            self.answer(link, FromService::Value(id, Vec::new()));
        }
    }

    /// Tells the roster, and publishes what it announces.
    pub(super) fn tell(&mut self, at: usize, event: Told) -> Result<(), Refusal> {
        self.follow_election(at);
        let now = self.instant(at);
        if !matches!(event, Told::Tick) {
            // What is due by time alone is not due to the event.
            self.tell(at, Told::Tick).ok();
        }
        let Some(roster) = &mut self.services[at].roster else { return Ok(()) };
        self.judge.note(&event);
        let (is_report, before) = (matches!(event, Told::Trouble(..)), reserves(roster));
        let goes_on = is_apart(roster, &event) && !is_disturbed(roster);
        let actions = roster.handle(event, now);
        assert!(!goes_on || !is_disturbed(roster), "a generation is disturbed by what is none of its business");
        assert!(is_report || reserves(roster) <= before, "one more is in reserve, and nobody said that it failed");
        let mut answer = Ok(());
        for action in actions {
            match action {
                Action::Refuse(refusal) => answer = Err(refusal),
                Action::Welcome => {}
                Action::Announce(view) => {
                    self.say(|| announcement(&view));
                    self.judge_view(&view);
                    self.services[at].latest = Some(FromService::View(view));
                    self.announce(at);
                }
                Action::Decide(verdict) => {
                    self.say(|| format!("verdict: {verdict}"));
                    self.services[at].latest = Some(FromService::Verdict(verdict));
                    self.announce(at);
                }
            }
            let Some(_) = &self.services[at].roster else { break };
        }
        answer
    }

    fn announce(&mut self, at: usize) {
        let roster = self.services[at].roster.as_ref().expect("it announces");
        let members: BTreeSet<_> = roster.members.iter().map(|member| member.session).collect();
        for link in 0..self.connections.len() {
            let Connection { session, open, at: there, service, .. } = &self.connections[link];
            let is_here = *there == at && *service == self.services[at].number;
            if let (Some(session), true, true) = (*session, open[1], is_here) {
                if !members.contains(&session) {
                    self.after(LEAVE_TIMEOUT, Event::Dismissal { link });
                }
                self.soil(link);
            }
        }
    }

    /// Whoever did not hear that it was removed learns it so.
    pub(super) fn dismiss(&mut self, link: usize) {
        self.judge_dismissal(link);
        self.close(link, true);
    }

    /// There is something new for this session; a slow one skips what was replaced meanwhile.
    fn soil(&mut self, link: usize) {
        if !std::mem::replace(&mut self.connections[link].is_dirty, true) {
            let delay = self.random.within(0..=3);
            self.after(delay, Event::Flush { link });
        }
    }

    pub(super) fn flush(&mut self, link: usize) {
        let Connection { at, service, .. } = self.connections[link];
        let is_current = service == self.services[at].number && self.services[at].is_up;
        if std::mem::take(&mut self.connections[link].is_dirty) && is_current {
            if self.validity(link).is_none() {
                return self.close(link, true);
            }
            let latest = self.services[at].latest.clone().unwrap_or(FromService::Nobody);
            self.answer(link, latest);
        }
    }

    /// The service notices that a connection has ended.
    pub(super) fn service_lost(&mut self, link: usize) {
        let Connection { session, at, service, .. } = self.connections[link];
        let is_current = service == self.services[at].number && self.services[at].is_up;
        if let Some(session) = session.filter(|_| is_current) {
            self.tell(at, Told::Closed(session, "its connection closed".into())).ok();
        }
    }
}

use super::network::Connection;

/// Whether the event comes from no member of the generation, or concerns another one, or a member that returns to it.
fn is_apart(roster: &Roster, event: &Told) -> bool {
    let is_spare = |session: &SessionId| !roster.members.iter().any(|it| it.session == *session && it.rank.is_some());
    match event {
        Told::Joined(_, who) => who.computing.as_ref() == Some(&roster.placement),
        Told::Trouble(session, generation, _) => is_spare(session) || *generation != roster.placement.generation,
        Told::Left(session, _) | Told::Closed(session, _) | Told::Drain(session) => is_spare(session),
        Told::Ready(session, _) | Told::Connected(session, _) | Told::Beat(session, _) => is_spare(session),
        Told::DrainRank(_) | Told::Tick => false,
    }
}

fn is_disturbed(roster: &Roster) -> bool {
    roster.phase == Phase::Over || roster.trouble.is_some()
}

fn announcement(view: &MembershipView) -> String {
    let MembershipView { generation, phase, why, members, pending } = view;
    let member = |it: &crate::rendezvous::membership::MemberStatus| {
        format!("{}{}={:?}", it.id, if it.draining { "-" } else { "" }, it.replicas)
    };
    let members: Vec<_> = members.iter().map(member).collect();
    let pending = pending.as_ref().map(|it| it.generation);
    format!("view: generation {generation} {phase:?} [{}] pending {pending:?}: {why}", members.join(" "))
}
