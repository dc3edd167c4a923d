//! The state of a client: what it knows of its job, and what follows from that.

use std::collections::VecDeque;
use std::time::Duration;

use kiln_system::Error;

use super::clock::Instant;
use super::membership::{MemberStatus, MembershipView, Phase, Placement, ProcessInfo, Progress, StateVersion};
use super::requests::Requests;
use super::sentence::span;
use super::{LATE_BEATS, Terms};

/// How long a process that wants to leave waits for an unreachable or silent service; longer if heartbeats are rare.
const SERVICE_WAIT: Duration = Duration::from_secs(3);

pub(super) struct MemberState {
    pub own: ProcessInfo,
    pub progress: Progress,
    pub session: u64,
    pub view: Option<MembershipView>,
    /// Whether a view of this session lists this process.
    pub is_known: bool,
    pub is_complete: bool,
    /// When the unanswered heartbeats were sent.
    pub unanswered_beats: VecDeque<Instant>,
    pub leased_until: Option<Instant>,
    pub disconnected_since: Option<Instant>,
    /// Whether the introduction was sent and not answered yet, which may take long over a slow link.
    pub is_introduced: bool,
    /// Why the last attempt to connect failed, and whether the secret may be wrong.
    pub failure: (String, bool),
    started: Instant,
    /// When the last message of the service came.
    pub last_heard: Instant,
    pub leave_requested: Option<Instant>,
    /// How long it then waits for the service.
    leave_alone_after: Duration,
    pub end: Option<End>,
    /// Called when the generation in which this process computes is over.
    pub when_over: Option<Box<dyn FnOnce() + Send>>,
}

/// Why a process is out of its job.
#[derive(Debug, Clone)]
pub(super) enum End {
    Left,
    Refused(Vec<String>),
    Lost(String),
}

impl End {
    fn refused(line: String) -> Self {
        Self::Refused(vec![line])
    }

    pub(crate) fn error(&self) -> Error {
        match self {
            Self::Left => Error::PeerLost("this process has left the job".into()),
            Self::Refused(lines) => Error::Usage(lines.clone()),
            Self::Lost(why) => Error::PeerLost(why.clone()),
        }
    }
}

/// An attempt to connect for a pending generation; it ends with its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    pub(super) session: u64,
    pub generation: u64,
}

pub(super) enum Instruction {
    Enter(MembershipView),
    /// Save the state, since no member computes.
    Save,
    /// Report ready again: this generation was over before it began here.
    Missed(u64),
    Leave,
    Finish,
}

impl MemberState {
    pub(crate) fn new(own: ProcessInfo, terms: &Terms) -> Self {
        Self {
            own,
            progress: Progress::default(),
            session: 0,
            view: None,
            is_known: false,
            is_complete: false,
            unanswered_beats: VecDeque::new(),
            leased_until: None,
            disconnected_since: Some(Instant::now()),
            is_introduced: false,
            failure: ("no answer".into(), false),
            started: Instant::now(),
            last_heard: Instant::now(),
            leave_requested: None,
            leave_alone_after: SERVICE_WAIT.max(terms.beat.saturating_mul(LATE_BEATS)),
            end: None,
            when_over: None,
        }
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.own.rank.is_some()
    }

    /// Whether joining has succeeded; a fixed job begins when all of its members have joined.
    pub(crate) fn is_admitted(&self) -> bool {
        let has_begun = self.view.as_ref().is_some_and(|view| view.phase == Phase::Running);
        if self.is_strict() { has_begun } else { self.is_known || self.is_complete }
    }

    /// Gives up if the service, or another member of a fixed job, was absent for too long.
    pub(crate) fn end_if_overdue(&mut self, address: &str, absence_limit: Duration) {
        let since = if self.is_strict() {
            Some(self.started).filter(|_| !self.is_admitted())
        } else {
            self.disconnected_since.filter(|_| !self.is_introduced)
        };
        if self.end.is_some() || since.is_none_or(|since| since.elapsed() < absence_limit) {
            return;
        }
        let (span, (why, is_unproven)) = (span(absence_limit), self.failure.clone());
        // With a session it is the other members that are absent.
        let missing = self.view.as_ref().filter(|_| self.disconnected_since.is_none());
        let (why, is_unproven) = missing.map_or((why, is_unproven), |it| (format!("{} did not come", it.why), false));
        self.end = Some(match self.own.rank {
            Some(rank) if is_unproven => End::refused(format!("rank {rank} did not join its job within {span}: {why}")),
            None if is_unproven && self.session == 0 => {
                End::refused(format!("this process did not join its job within {span}: {why}"))
            }
            Some(rank) => End::Lost(format!(
                "rank {rank} did not meet all processes at the rendezvous '{address}' within {span}: {why}; start all \
                 processes, or wait longer with --dist-timeout"
            )),
            None => End::Lost(format!(
                "the rendezvous '{address}' could not be reached for {span}: {why}; start it again, or wait longer \
                 with --elastic-timeout"
            )),
        });
    }

    pub(crate) fn begin_session(&mut self) {
        (self.disconnected_since, self.view, self.is_known, self.is_introduced) = (None, None, false, false);
        self.session += 1;
        (self.leased_until, self.unanswered_beats) = (None, VecDeque::new());
    }

    /// Notes that this process computes no longer; returns the generation that it left, 0 if none.
    pub(crate) fn stop_computing(&mut self, holds: StateVersion, devices: usize) -> u64 {
        (self.own.holds, self.own.devices, self.when_over) = (holds, devices, None);
        self.own.computing.take().map_or(0, |placement| placement.generation)
    }

    /// Whether this process may update its state, or why its generation is over; `None` if that is not known yet.
    pub(crate) fn confirm(&self) -> Option<Result<(), String>> {
        if let Some(end_reason) = self.end_reason() {
            return Some(Err(end_reason));
        }
        // A service that has closed the session may have begun the next generation. Once the members of this one have
        // all come to a restarted service, none of them takes part in a later one.
        let parts = self.view.as_ref().filter(|_| self.disconnected_since.is_none())?.parts().count();
        let is_whole = self.own.computing.as_ref().is_some_and(|placement| placement.blocks.len() == parts);
        let is_leased = self.leased_until.is_some_and(|until| Instant::now() < until);
        // After the end of the run no other heartbeat may be answered.
        let is_late = self.is_complete.then(|| Err("the run is complete".into()));
        (is_whole && is_leased).then_some(Ok(())).or(is_late)
    }

    /// Whether the generation must end after the current step.
    pub(crate) fn is_ending(&self) -> bool {
        self.view.as_ref().is_some_and(|it| self.computes_in(it) && it.phase == Phase::Ending)
    }

    /// The next action after the generation `left`; `is_saved` says whether the state was saved since.
    pub(crate) fn instruction(&self, left: u64, is_saved: bool) -> Option<Instruction> {
        if self.is_complete {
            return Some(Instruction::Finish);
        }
        if self.must_leave_alone() {
            return Some(if is_saved { Instruction::Leave } else { Instruction::Save });
        }
        let view = self.view.as_ref()?;
        let first = view.members.first().is_none_or(|member| member.id == self.own.id);
        if view.phase == Phase::Waiting && self.is_known && first && !is_saved {
            return Some(Instruction::Save);
        }
        let has_part = view.member(self.own.id).is_some_and(MemberStatus::has_part);
        let is_new = view.generation > left;
        match view.phase {
            // Others hold the state too, or there are none.
            Phase::Running | Phase::Ending if self.leave_is_known() && is_new && !has_part => Some(Instruction::Leave),
            Phase::Waiting if self.leave_is_known() => Some(Instruction::Leave),
            Phase::Running | Phase::Ending if is_new && has_part => Some(Instruction::Enter(view.clone())),
            Phase::Over | Phase::Waiting if is_new && has_part => Some(Instruction::Missed(view.generation)),
            _ => None,
        }
    }

    pub(crate) fn request_leave(&mut self) {
        self.own.draining = true;
        self.leave_requested.get_or_insert_with(Instant::now);
    }

    /// Whether this process wants to leave and the service does not answer.
    pub(crate) fn must_leave_alone(&self) -> bool {
        let Some(requested) = self.leave_requested else { return false };
        let silent = requested.max(self.last_heard);
        self.disconnected_since.map_or(silent, |since| since.min(silent)).elapsed() >= self.leave_alone_after
    }

    /// Whether this process wants to leave, and the service knows.
    fn leave_is_known(&self) -> bool {
        self.own.draining && self.is_known
    }

    /// What a process without replicas waits for, for people.
    pub(crate) fn awaited(&self) -> String {
        let Some(view) = self.view.as_ref().filter(|_| self.disconnected_since.is_none()) else {
            return "the rendezvous does not answer".into();
        };
        let generation = view.generation;
        match view.phase {
            // The shortage is the last cause.
            Phase::Waiting => view.why.rsplit("; ").next().unwrap_or_default().into(),
            Phase::Ending => format!("the processes of generation {generation} finish their step"),
            Phase::Over => format!("the processes of generation {generation} prepare for the next one"),
            Phase::Running if self.pending().is_some() => "this process connects with the others".into(),
            Phase::Running | Phase::Complete => "in reserve, since there is no replica for this process".into(),
        }
    }

    /// The pending generation, if this process has a part in it, and the attempt to connect for it.
    pub(crate) fn pending(&self) -> Option<(Attempt, &Placement)> {
        let pending = self.view.as_ref()?.pending.as_ref()?;
        pending.rank(self.own.id)?;
        Some((Attempt { session: self.session, generation: pending.generation }, pending))
    }

    pub(crate) fn computes_in(&self, view: &MembershipView) -> bool {
        self.own.computing.as_ref().is_some_and(|placement| placement.generation == view.generation)
    }

    /// Why the generation in which this process computes, or the run, is over; `None` if it is not.
    pub(crate) fn end_reason(&self) -> Option<String> {
        if let Some(end) = &self.end {
            return Some(end.error().to_string());
        }
        if self.must_leave_alone() {
            return Some("this process leaves without the rendezvous, which does not answer".into());
        }
        self.own.computing.as_ref()?;
        let view = self.view.as_ref()?;
        // When the run is complete, this process is about to finish it as well.
        let is_alive = matches!(view.phase, Phase::Running | Phase::Ending | Phase::Complete);
        let continues = self.computes_in(view) && is_alive && view.member(self.own.id).is_some();
        (!continues).then(|| view.why.clone())
    }

    /// If the generation is over, cancels requests and calls `when_over`.
    pub(crate) fn act_if_over(&mut self, requests: &Requests) {
        if self.end_reason().is_none() {
            return;
        }
        requests.cancel();
        if let Some(act) = self.when_over.take() {
            // It may wait for other threads that need this state.
            let thread = std::thread::Builder::new().name("generation".into());
            if let Err(error) = thread.spawn(act) {
                tracing::warn!("cannot start a thread to end the generation: {error}");
            }
        }
    }
}
