//! The policy of a job: who is a member, when a generation begins, and why it ends.
//!
//! A pure state machine: events and the time go in, actions come out; it knows no network and no clock of its own. A
//! generation is an immutable assignment of all replicas to members. It ends when membership changes; its members then
//! tell that they are ready and what state they hold, and the next one begins. Everything here can be learnt again from
//! the members, so a restarted service goes on where the last one stopped. This file takes events in; when a generation
//! ends and the next one begins is left to `generation`, which member computes which replicas to
//! [`placement`](super::placement), and who may be a member at all to `eligibility`. A job of fixed membership has one
//! generation; what is special about it is in [`strict`].

mod generation;
mod prospect;
pub mod strict;

use std::collections::BTreeMap;
use std::time::Instant;

use prospect::Prospect;
use strict::Evidence;

use super::{LATE_BEATS, MOST_MEMBERS};
use crate::launch::rendezvous::bulletin::{
    Action, Assembly, Bulletin, Entry, Event, Newcomer, Phase, Progress, Ready, Rules, Seat,
};
use crate::launch::rendezvous::causes::Causes;
use crate::launch::rendezvous::eligibility;
use crate::launch::rendezvous::placement::Host;
use crate::launch::rendezvous::refusal::Refusal;
use crate::launch::rendezvous::sentence;

/// The longest activity of a member that is kept, in characters.
const LONGEST_ACTIVITY: usize = 200;

/// A member as the roster sees it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) seat: Seat,
    pub(super) who: Newcomer,
    /// The generation it computes in; it is ready if there is none. 0 is one that the roster does not know.
    pub(super) computing: Option<u64>,
    /// Its rank in the current or last generation.
    pub(super) rank: Option<usize>,
    pub(super) progress: Progress,
    pub(super) came: Instant,
    /// Until when it stays in reserve, as the others could not connect with it.
    pub(super) reserved: Option<Instant>,
    pub(super) heard: Instant,
    evidence: Evidence,
}

impl Member {
    pub fn name(&self) -> String {
        eligibility::name(&self.who)
    }

    pub fn host(&self) -> Host {
        Host { id: self.who.id, devices: self.who.devices }
    }
}

/// Arrivals that are close to each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrivals {
    pub(super) first: Instant,
    pub(super) last: Instant,
}

/// The state of one job.
#[derive(Debug)]
pub struct Roster {
    pub(super) rules: Rules,
    pub(super) phase: Phase,
    /// When the phase began.
    pub(super) since: Instant,
    /// The current or last generation.
    pub(super) assembly: Assembly,
    prospect: Option<Prospect>,
    /// The greatest generation that anybody heard of.
    pub(super) greatest: u64,
    /// In order of arrival.
    pub(super) members: Vec<Member>,
    pub(super) causes: Causes,
    pub(super) arrivals: Option<Arrivals>,
    /// The first report that a collective failed.
    pub(super) trouble: Option<(Instant, String)>,
    /// In a strict job: when trouble must be explained that was reported, or an end of a session.
    pub(super) due: Option<Instant>,
    /// Members of generations that another service led, as those who come from there call them.
    pub(super) expected: BTreeMap<u64, String>,
    /// Since when the members of an adopted generation are expected back.
    pub(super) returning: Option<Instant>,
    /// Since when there have been too few members.
    pub(super) short: Option<Instant>,
    /// What newcomers are told when the job has come to its end.
    pub(super) closed: Option<Refusal>,
    /// Whether members have something to hear.
    pub(super) changed: bool,
    /// The last time anything happened, ticks included.
    pub(super) awake: Instant,
}

impl Roster {
    /// Nobody is there yet.
    pub fn new(rules: Rules, now: Instant) -> Self {
        Self {
            rules,
            phase: Phase::Waiting,
            since: now,
            assembly: Assembly::default(),
            prospect: None,
            greatest: 0,
            members: Vec::new(),
            causes: Causes::default(),
            arrivals: None,
            trouble: None,
            due: None,
            expected: BTreeMap::new(),
            returning: None,
            short: None,
            closed: None,
            changed: false,
            awake: now,
        }
    }

    /// Takes in what happened at `now`. Each announcement replaces those before it.
    pub fn handle(&mut self, event: Event, now: Instant) -> Vec<Action> {
        self.forgive_own_absence(now);
        let mut actions = Vec::new();
        match event {
            Event::Came(seat, who) => {
                let refusal = self.receive(seat, who, now).err();
                actions.push(refusal.map_or(Action::Welcome, Action::Refuse));
            }
            Event::DrainRank(rank) => actions.extend(self.drain_rank(rank).err().map(Action::Refuse)),
            // What comes from a seat that nobody has any more means nothing.
            event if self.closed.is_none() => drop(self.take_in(event, now)),
            _ => {}
        }
        if self.is_complete() && std::mem::take(&mut self.changed) {
            actions.push(Action::Announce(self.bulletin()));
        }
        while self.closed.is_none() {
            actions.extend(self.weigh(now));
            if self.closed.is_some() || !std::mem::take(&mut self.changed) {
                break;
            }
            actions.push(Action::Announce(self.bulletin()));
        }
        actions
    }

    /// What members need to know now.
    pub fn bulletin(&self) -> Bulletin {
        let mut members: Vec<_> = self.members.iter().collect();
        members.sort_by_key(|member| member.rank.unwrap_or(usize::MAX));
        let gathers = self.rules.strict && self.phase == Phase::Waiting;
        let shortage = if gathers { Some(self.missing_ranks()) } else { self.short.map(|_| self.shortage()) };
        Bulletin {
            generation: self.assembly.generation,
            phase: self.phase,
            why: self.causes.line(shortage),
            members: members.into_iter().map(|member| self.entry(member)).collect(),
            prospect: self.prospect.as_ref().filter(|_| self.at_work()).map(|prospect| prospect.assembly.clone()),
        }
    }

    fn entry(&self, member: &Member) -> Entry {
        let block = member.rank.and_then(|rank| self.assembly.blocks.get(rank));
        Entry {
            id: member.who.id,
            host: member.who.host.clone(),
            process: member.who.process,
            devices: block.map_or(member.who.devices, |block| block.devices),
            replicas: block.map_or(0..0, |block| block.replicas.clone()),
            draining: member.who.draining,
            progress: member.progress.clone(),
        }
    }

    /// Whether there is nothing left to do.
    pub fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    /// Whether a process gets `refusal` for no other reason than that the run is complete.
    pub(super) fn is_complete_for(&self, refusal: &Refusal) -> bool {
        self.is_complete() && self.closed.as_ref() == Some(refusal)
    }

    /// What newcomers are told once the job has come to its end; passing if the run is not complete.
    pub fn ending(&self) -> Option<&Refusal> {
        self.closed.as_ref()
    }

    /// No clock runs while the service itself does not (it was stopped and continued).
    fn forgive_own_absence(&mut self, now: Instant) {
        let absent = now.saturating_duration_since(self.awake);
        self.awake = now;
        if absent <= self.rules.beat.saturating_mul(LATE_BEATS) {
            return;
        }
        let members = self.members.iter_mut().flat_map(|member| [&mut member.came, &mut member.heard]);
        let arrivals = self.arrivals.iter_mut().flat_map(|it| [&mut it.first, &mut it.last]);
        let trouble = self.trouble.iter_mut().map(|(reported, _)| reported);
        let others =
            [&mut self.since].into_iter().chain(&mut self.returning).chain(&mut self.short).chain(&mut self.due);
        members.chain(arrivals).chain(trouble).chain(others).for_each(|clock| *clock += absent);
    }

    fn take_in(&mut self, event: Event, now: Instant) -> Option<()> {
        match event {
            Event::Beat(seat, progress) => self.hear(seat, now)?.progress = shortened(progress),
            event if self.rules.strict => self.take_evidence(event, now)?,
            Event::Ready(seat, ready) => self.get_ready(seat, ready, now)?,
            Event::Connected(seat, generation) => self.note_connected(seat, generation, now)?,
            Event::Trouble(seat, generation, symptom) => self.note_trouble(seat, generation, &symptom, now)?,
            Event::Drain(seat) => {
                self.hear(seat, now)?;
                self.drain(|member| member.seat == seat);
            }
            Event::Left(seat, reason) => self.part(seat, reason, now)?,
            Event::Closed(seat, how) => {
                let member = self.members.iter().find(|member| member.seat == seat)?;
                let cause = format!("{} was lost: {}", member.name(), sentence::line(&how, LONGEST_ACTIVITY));
                self.remove(seat, Some(cause), now);
            }
            Event::Came(..) | Event::DrainRank(_) | Event::Tick => {}
        }
        Some(())
    }

    fn drain_rank(&mut self, rank: usize) -> Result<(), Refusal> {
        self.closed.clone().map_or(Ok(()), Err)?;
        let mut ranks: Vec<_> = self.members.iter().filter_map(|member| member.rank).collect();
        ranks.sort_unstable();
        if ranks.is_empty() {
            return Err(Refusal::passing("nobody has a rank before the first generation begins; ask again then"));
        }
        if !ranks.contains(&rank) {
            let there = sentence::ranks(&ranks);
            return Err(Refusal::lasting(format!("the run has no rank '{rank}', only {there} (--drain)")));
        }
        self.drain(|member| member.rank == Some(rank));
        Ok(())
    }

    fn drain(&mut self, which: impl Fn(&Member) -> bool) {
        for member in self.members.iter_mut().filter(|member| which(member) && !member.who.draining) {
            (member.who.draining, self.changed) = (true, true);
            if member.rank.is_some() {
                self.causes.add(format!("{} leaves", member.name()));
            }
        }
    }

    pub(super) fn hear(&mut self, seat: Seat, now: Instant) -> Option<&mut Member> {
        let member = self.members.iter_mut().find(|member| member.seat == seat)?;
        member.heard = now;
        Some(member)
    }

    /// Admits a process, which may be a member that comes back.
    fn receive(&mut self, seat: Seat, mut who: Newcomer, now: Instant) -> Result<(), Refusal> {
        if self.rules.strict {
            self.admit_rank(&who)?;
        }
        eligibility::examine(&who, self.members.iter().map(|member| &member.who))?;
        self.closed.clone().map_or(Ok(()), Err)?;
        let assembly = who.computing.take().filter(|_| !self.rules.strict);
        let peers = std::mem::take(&mut who.peers);
        if self.assembly.generation == 0 {
            self.expected.extend(peers.into_iter().take(MOST_MEMBERS));
        }
        let claimed = assembly.as_ref().map(|it| it.generation);
        self.greatest = self.greatest.max(who.heard).max(who.standing.generation).max(claimed.unwrap_or(0));
        let known = assembly.as_ref() == Some(&self.assembly);
        let (computing, rank) = (claimed.map(|it| if known { it } else { 0 }), self.assembly.rank(who.id));
        let (progress, evidence) = Default::default();
        let (came, heard, reserved) = (now, now, None);
        let fresh = self.seat(Member { seat, who, computing, rank, progress, came, reserved, heard, evidence });
        if let Some(assembly) = assembly.filter(|_| !known) {
            self.weigh_claim(seat, assembly, now);
        }
        if fresh && self.members.iter().any(|member| member.seat == seat && member.rank.is_none()) {
            self.arrive(now);
        }
        Ok(())
    }

    /// Puts `member` on the list; whether it can take part from now on, other than its former self there.
    fn seat(&mut self, mut member: Member) -> bool {
        let Some(old) = self.members.iter_mut().find(|old| old.who.id == member.who.id) else {
            self.members.push(member);
            self.changed = true;
            return true;
        };
        // What it connected with, it gave up with its session.
        self.changed |= self.prospect.take_if(|prospect| prospect.assembly.rank(member.who.id).is_some()).is_some();
        // It may not have heard that it was asked to leave.
        member.who.draining |= old.who.draining;
        self.changed |= member.who.draining != old.who.draining || member.who.devices != old.who.devices;
        let fresh = old.computing.is_some() && member.computing.is_none();
        (member.progress, member.reserved) = (std::mem::take(&mut old.progress), old.reserved);
        *old = member;
        fresh
    }

    fn arrive(&mut self, now: Instant) {
        let first = self.arrivals.filter(|_| !self.settled(now)).map_or(now, |arrivals| arrivals.first);
        self.arrivals = Some(Arrivals { first, last: now });
    }

    /// A member computes in a generation that is not the roster's.
    fn weigh_claim(&mut self, seat: Seat, assembly: Assembly, now: Instant) {
        let generation = assembly.generation;
        let Some(member) = self.members.iter_mut().find(|member| member.seat == seat) else { return };
        let part = assembly.rank(member.who.id).is_some();
        if self.assembly.generation == 0 && generation == self.greatest && part && assembly.covers(self.rules.world) {
            // Members that hold another opinion end it again at once, see `fault`.
            member.computing = Some(generation);
            self.members.iter_mut().for_each(|member| member.rank = assembly.rank(member.who.id));
            self.assembly = assembly;
            (self.returning, self.short) = (Some(now), None);
            self.causes.add("the rendezvous was restarted");
            self.causes.close();
            self.enter(Phase::Running, now);
        } else if generation >= self.assembly.generation {
            let cause = format!("{} computes in another generation {generation}", member.name());
            self.break_off(cause, now);
        }
    }

    fn get_ready(&mut self, seat: Seat, ready: Ready, now: Instant) -> Option<()> {
        let latest = self.greatest;
        let member = self.hear(seat, now)?;
        if member.computing.is_some_and(|computing| ready.generation < computing) {
            // It said so before the generation began in which it takes part now.
            return None;
        }
        let new = member.computing.take().is_some() && member.rank.is_none();
        (member.who.standing, member.who.devices) = (ready.standing, ready.devices);
        member.who.standing.generation = ready.standing.generation.min(latest);
        let cause = ready.reason.map(|reason| eligibility::failed(&member.who, &reason));
        let part = member.rank.is_some();
        if new {
            self.arrive(now);
        }
        if let Some(cause) = cause.filter(|_| part) {
            self.break_off(cause, now);
        }
        Some(())
    }

    fn note_trouble(&mut self, seat: Seat, generation: u64, symptom: &str, now: Instant) -> Option<()> {
        let member = self.hear(seat, now)?;
        let (name, symptom) = (member.name(), sentence::line(symptom, 300));
        if member.computing == Some(generation) && self.at_work() && generation == self.assembly.generation {
            self.trouble.get_or_insert((now, format!("{name} lost touch with its peers: {symptom}")));
        } else {
            self.give_up_prospect(generation, &format!("{name} could not connect: {symptom}"), now);
        }
        Some(())
    }

    fn part(&mut self, seat: Seat, reason: Option<String>, now: Instant) -> Option<()> {
        let member = self.hear(seat, now)?;
        let cause = match reason {
            Some(reason) => Some(eligibility::failed(&member.who, &reason)),
            None if member.who.draining => None,
            None => {
                self.closed = Some(Refusal::lasting("the job is complete"));
                self.enter(Phase::Complete, now);
                return Some(());
            }
        };
        self.remove(seat, cause, now);
        Some(())
    }

    /// Whoever goes for a `cause` breaks off the generation in which it has a part.
    pub(super) fn remove(&mut self, seat: Seat, cause: Option<String>, now: Instant) {
        let Some(index) = self.members.iter().position(|member| member.seat == seat) else { return };
        let member = self.members.remove(index);
        self.changed = true;
        let Some(cause) = cause else { return };
        if self.at_work() && member.rank.is_some() {
            self.break_off(cause, now);
        } else if !self.at_work() {
            self.causes.add(cause);
        }
    }
}

/// Progress comes from strangers; it is kept short.
fn shortened(progress: Progress) -> Progress {
    Progress { activity: sentence::line(&progress.activity, LONGEST_ACTIVITY), ..progress }
}
