//! The policy of a job: which processes are members, and when and why a generation begins and ends.
//!
//! A pure state machine: events and times go in, actions come out; it has no network and no clock. A generation is an
//! immutable placement of all replicas on members. It ends when membership changes; its members then report that they
//! are ready and what state they hold, and the next one begins. The members know everything that a restarted service
//! needs to continue. This file handles events, `arrival` handles processes that come or are ready; `generation`
//! decides when a generation ends and the next one begins, [`placement`](super::placement) which member computes which
//! replicas, and `eligibility` which process may join. A job of fixed membership has one generation, see [`strict`].

mod arrival;
mod generation;
mod pending;
pub mod strict;

use std::collections::BTreeMap;
use std::time::Instant;

use pending::PendingGeneration;
use strict::Evidence;

use super::LATE_BEATS;
use crate::rendezvous::change_causes::ChangeCauses;
use crate::rendezvous::eligibility;
use crate::rendezvous::membership::{
    Action, Event, MemberStatus, MembershipView, Phase, Placement, ProcessInfo, Progress, Rules, SessionId,
};
use crate::rendezvous::placement::Candidate;
use crate::rendezvous::refusal::Refusal;
use crate::rendezvous::sentence;

const LONGEST_ACTIVITY: usize = 200;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) session: SessionId,
    pub(super) info: ProcessInfo,
    /// The generation it computes in, 0 if the roster does not know that one; `None` if it is ready.
    pub(super) computing: Option<u64>,
    /// Its rank in the current or last generation.
    pub(super) rank: Option<usize>,
    pub(super) progress: Progress,
    pub(super) joined_at: Instant,
    /// Until when it stays in reserve, because the others could not connect with it.
    pub(super) reserved_until: Option<Instant>,
    pub(super) last_heard: Instant,
    evidence: Evidence,
}

impl Member {
    pub(crate) fn name(&self) -> String {
        eligibility::name(&self.info)
    }

    pub(crate) fn candidate(&self) -> Candidate {
        Candidate { id: self.info.id, devices: self.info.devices, nanoseconds: self.info.nanoseconds }
    }
}

/// The times of members that joined shortly after each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrivals {
    pub(super) first: Instant,
    pub(super) last: Instant,
}

#[derive(Debug)]
pub struct Roster {
    pub(super) rules: Rules,
    pub(super) phase: Phase,
    created: Instant,
    /// Whether it was elected, maybe after another one.
    is_elected: bool,
    pub(super) since: Instant,
    /// The current or last generation.
    pub(super) placement: Placement,
    pending: Option<PendingGeneration>,
    /// The greatest generation that any member has seen.
    pub(super) greatest: u64,
    /// In order of arrival.
    pub(super) members: Vec<Member>,
    pub(super) causes: ChangeCauses,
    pub(super) arrivals: Option<Arrivals>,
    /// The first report that a collective failed.
    pub(super) trouble: Option<(Instant, String)>,
    /// In a strict job: the deadline for a verdict on reported trouble or a closed session.
    pub(super) verdict_due: Option<Instant>,
    /// The names of members of generations before a restart of the service, as reported by other members.
    pub(super) expected_back: BTreeMap<u64, String>,
    /// Since when the members of a generation from before a restart are expected back.
    pub(super) returning_since: Option<Instant>,
    /// Since when there have been too few members.
    pub(super) short_since: Option<Instant>,
    /// The refusal for processes that come after the end of the job; transient if the run is not complete.
    pub(super) ended: Option<Refusal>,
    pub(super) changed: bool,
    /// The time of the last event, ticks included.
    pub(super) last_event: Instant,
}

impl Roster {
    pub fn new(rules: Rules, now: Instant) -> Self {
        Self {
            rules,
            phase: Phase::Waiting,
            created: now,
            is_elected: false,
            since: now,
            placement: Placement::default(),
            pending: None,
            greatest: 0,
            members: Vec::new(),
            causes: ChangeCauses::default(),
            arrivals: None,
            trouble: None,
            verdict_due: None,
            expected_back: BTreeMap::new(),
            returning_since: None,
            short_since: None,
            ended: None,
            changed: false,
            last_event: now,
        }
    }

    /// The same for a service that leads `since` then, and has heard of `generation`; see
    /// [`election`](super::election).
    pub fn elected(self, since: Instant, generation: u64) -> Self {
        Self { created: since, is_elected: true, greatest: generation.min(eligibility::GREATEST_GENERATION), ..self }
    }

    /// Handles an event at `now`. Each announcement replaces those before it.
    pub fn handle(&mut self, event: Event, now: Instant) -> Vec<Action> {
        self.exclude_own_pause(now);
        let mut actions = Vec::new();
        match event {
            Event::Joined(session, info) => {
                let refusal = self.admit(session, info, now).err();
                actions.push(refusal.map_or(Action::Welcome, Action::Refuse));
            }
            Event::DrainRank(rank) => actions.extend(self.drain_rank(rank).err().map(Action::Refuse)),
            // `apply` ignores events of sessions that were replaced.
            event if self.ended.is_none() => drop(self.apply(event, now)),
            _ => {}
        }
        if self.is_complete() && std::mem::take(&mut self.changed) {
            actions.push(Action::Announce(self.view()));
        }
        while self.ended.is_none() {
            actions.extend(self.advance(now));
            if self.ended.is_some() || !std::mem::take(&mut self.changed) {
                break;
            }
            actions.push(Action::Announce(self.view()));
        }
        actions
    }

    pub fn view(&self) -> MembershipView {
        let mut members: Vec<_> = self.members.iter().collect();
        members.sort_by_key(|member| member.rank.unwrap_or(usize::MAX));
        let gathers = self.rules.strict && self.phase == Phase::Waiting;
        let shortage = if gathers { Some(self.missing_ranks()) } else { self.short_since.map(|_| self.shortage()) };
        MembershipView {
            generation: self.placement.generation,
            phase: self.phase,
            why: self.causes.line(shortage),
            members: members.into_iter().map(|member| self.status(member)).collect(),
            pending: self.pending.as_ref().filter(|_| self.is_active()).map(|pending| pending.placement.clone()),
        }
    }

    fn status(&self, member: &Member) -> MemberStatus {
        let block = member.rank.and_then(|rank| self.placement.blocks.get(rank));
        MemberStatus {
            id: member.info.id,
            host: member.info.host.clone(),
            process: member.info.process,
            devices: block.map_or(member.info.devices, |block| block.devices),
            replicas: block.map_or(0..0, |block| block.replicas.clone()),
            draining: member.info.draining,
            progress: member.progress.clone(),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    /// Whether `refusal` only says that the run is complete.
    pub fn is_complete_for(&self, refusal: &Refusal) -> bool {
        self.is_complete() && self.ended.as_ref() == Some(refusal)
    }

    /// Moves all times if the service itself was stopped and continued, so that the pause does not count.
    fn exclude_own_pause(&mut self, now: Instant) {
        let pause = now.saturating_duration_since(self.last_event);
        self.last_event = now;
        if pause <= self.rules.beat.saturating_mul(LATE_BEATS) {
            return;
        }
        let members = self.members.iter_mut().flat_map(|member| {
            [&mut member.joined_at, &mut member.last_heard].into_iter().chain(&mut member.reserved_until)
        });
        let arrivals = self.arrivals.iter_mut().flat_map(|it| [&mut it.first, &mut it.last]);
        let trouble = self.trouble.iter_mut().map(|(reported, _)| reported);
        let optional = [&mut self.returning_since, &mut self.short_since, &mut self.verdict_due].into_iter().flatten();
        let pending = self.pending.iter_mut().map(|pending| &mut pending.since);
        let times = members
            .chain(arrivals)
            .chain(trouble)
            .chain(optional)
            .chain(pending)
            .chain([&mut self.created, &mut self.since]);
        times.for_each(|time| *time += pause);
    }

    fn apply(&mut self, event: Event, now: Instant) -> Option<()> {
        match event {
            Event::Beat(session, progress) => {
                let activity = sentence::line(&progress.activity, LONGEST_ACTIVITY);
                self.heard_from(session, now)?.progress = Progress { activity, ..progress };
            }
            event if self.rules.strict => self.take_evidence(event, now)?,
            Event::Ready(session, ready) => self.get_ready(session, ready, now)?,
            Event::Connected(session, generation) => self.note_connected(session, generation, now)?,
            Event::Trouble(session, generation, symptom) => self.note_trouble(session, generation, &symptom, now)?,
            Event::Drain(session) => {
                self.heard_from(session, now)?;
                self.drain(|member| member.session == session);
            }
            Event::Left(session, reason) => self.handle_leave(session, reason, now)?,
            Event::Closed(session, how) => {
                let member = self.members.iter().find(|member| member.session == session)?;
                let cause = format!("{} was lost: {}", member.name(), sentence::line(&how, LONGEST_ACTIVITY));
                self.remove(session, Some(cause), now);
            }
            Event::Joined(..) | Event::DrainRank(_) | Event::Tick => {}
        }
        Some(())
    }

    fn drain_rank(&mut self, rank: usize) -> Result<(), Refusal> {
        self.ended.clone().map_or(Ok(()), Err)?;
        if self.rules.strict {
            let rule =
                "the membership of this run is fixed, so --drain cannot remove a rank; start the run with --elastic";
            return Err(Refusal::permanent(rule));
        }
        let mut ranks: Vec<_> = self.members.iter().filter_map(|member| member.rank).collect();
        ranks.sort_unstable();
        if ranks.is_empty() {
            return Err(Refusal::transient("there are no ranks before the first generation begins; try again later"));
        }
        if !ranks.contains(&rank) {
            let there = sentence::ranks(&ranks);
            return Err(Refusal::permanent(format!("the run has no rank '{rank}' to --drain, only {there}")));
        }
        self.drain(|member| member.rank == Some(rank));
        Ok(())
    }

    fn drain(&mut self, which: impl Fn(&Member) -> bool) {
        for member in self.members.iter_mut().filter(|member| which(member) && !member.info.draining) {
            (member.info.draining, self.changed) = (true, true);
            if member.rank.is_some() {
                self.causes.add(format!("{} leaves", member.name()));
            }
        }
    }

    pub(super) fn heard_from(&mut self, session: SessionId, now: Instant) -> Option<&mut Member> {
        let member = self.members.iter_mut().find(|member| member.session == session)?;
        member.last_heard = now;
        Some(member)
    }

    fn note_trouble(&mut self, session: SessionId, generation: u64, symptom: &str, now: Instant) -> Option<()> {
        let member = self.heard_from(session, now)?;
        let (name, symptom) = (member.name(), sentence::line(symptom, 300));
        if member.computing == Some(generation) && self.is_active() && generation == self.placement.generation {
            self.trouble.get_or_insert((now, format!("{name} lost touch with its peers: {symptom}")));
        } else {
            self.give_up_pending(generation, &format!("{name} could not connect: {symptom}"), now);
        }
        Some(())
    }

    fn handle_leave(&mut self, session: SessionId, reason: Option<String>, now: Instant) -> Option<()> {
        let (active, generation) = (self.is_active(), self.placement.generation);
        let member = self.heard_from(session, now)?;
        let cause = match reason {
            Some(reason) => Some(eligibility::failed(&member.info, &reason)),
            // It leaves as agreed, unless the others of its generation still need it.
            None if member.info.draining => {
                let is_needed = active && member.rank.is_some() && member.computing.is_some();
                is_needed.then(|| format!("{} left generation {generation}", member.name()))
            }
            None => {
                self.ended = Some(Refusal::permanent("the job is complete"));
                self.enter(Phase::Complete, now);
                return Some(());
            }
        };
        self.remove(session, cause, now);
        Some(())
    }

    /// Removes a member; with a `cause`, the generation in which it has a part is broken off.
    pub(super) fn remove(&mut self, session: SessionId, cause: Option<String>, now: Instant) {
        let Some(index) = self.members.iter().position(|member| member.session == session) else { return };
        let member = self.members.remove(index);
        self.changed = true;
        let Some(cause) = cause else { return };
        if self.is_active() && member.rank.is_some() {
            self.break_off(cause, now);
        } else if !self.is_active() {
            self.causes.add(cause);
        }
    }
}
