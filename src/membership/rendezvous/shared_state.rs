//! The state of a client as threads share it: the session's thread stores views, the threads of callers wait for
//! changes.

use std::time::Duration;

use kiln_system::Result;
use parking_lot::{Condvar, Mutex};

use super::Terms;
use super::clock::Instant;
use super::eligibility::called;
use super::member_state::{End, MemberState};
use super::membership::{MemberStatus, MembershipView, Phase, ProcessInfo, lease};
use super::requests::Requests;
use super::wire::{FromMember, FromService};

/// How long a waiting thread sleeps at most before it checks the time.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// The state that the threads of callers and the session's thread share.
pub(super) struct SharedState {
    pub requests: Requests,
    pub state: Mutex<MemberState>,
    changed: Condvar,
    /// How long a heartbeat that the service answered is a lease at most.
    lease: Duration,
    pub address: String,
    /// How long the service, or the other members of a fixed job, may be absent.
    pub absence_limit: Duration,
}

impl SharedState {
    pub(crate) fn new(own: ProcessInfo, terms: &Terms, address: &str, absence_limit: Duration) -> Self {
        let (requests, changed) = (Requests::default(), Condvar::new());
        let state = Mutex::new(MemberState::new(own, terms));
        Self { requests, state, changed, lease: lease(terms.timeout), address: address.into(), absence_limit }
    }

    /// Waits until `find` returns something, this process is out of the job, or the service was absent for too long.
    pub(crate) fn wait<T>(&self, find: impl Fn(&MemberState) -> Option<T>) -> Result<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(found) = self.look(&mut state, &find) {
                return found;
            }
            self.changed.wait_for(&mut state, POLL);
        }
    }

    /// The result of a wait in this state; `None` if it continues.
    pub(crate) fn look<T>(
        &self,
        state: &mut MemberState,
        find: impl Fn(&MemberState) -> Option<T>,
    ) -> Option<Result<T>> {
        find(state).map(Ok).or_else(|| {
            state.end_if_overdue(&self.address, self.absence_limit);
            state.end.as_ref().map(|end| Err(end.error()))
        })
    }

    /// Sets why this process is out of the job, unless it is already.
    pub(crate) fn end(&self, end: End) {
        self.change(|state| {
            state.end.get_or_insert(end);
        });
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut MemberState)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.end_if_overdue(&self.address, self.absence_limit);
        state.act_if_over(&self.requests);
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn handle_message(&self, message: FromService) {
        self.state.lock().last_heard = Instant::now();
        let Some(message) = self.requests.take_answer(message) else { return };
        self.change(|state| match message {
            FromService::Alive(validity) => {
                let lease = self.lease.min(validity);
                state.leased_until = state.unanswered_beats.pop_front().map(|sent| sent + lease).or(state.leased_until);
            }
            FromService::Verdict(verdict) => drop(state.end.get_or_insert(End::Lost(verdict))),
            FromService::View(view) => {
                let own = view.member(state.own.id);
                state.is_known |= own.is_some();
                // `train members --drain` may have asked this process to leave.
                if own.is_some_and(|member| member.draining) {
                    state.request_leave();
                }
                state.is_complete |= view.phase == Phase::Complete;
                state.own.latest_generation = state.own.latest_generation.max(view.generation);
                if view.phase == Phase::Running && own.is_some_and(MemberStatus::has_part) {
                    let name = |member: &MemberStatus| (member.id, called(&member.host, member.process));
                    state.own.peers = view.parts().map(name).collect();
                }
                state.view = Some(view);
            }
            _ => {}
        });
    }

    pub(crate) fn beat(&self) -> FromMember {
        let mut state = self.state.lock();
        state.unanswered_beats.push_back(Instant::now());
        FromMember::Beat(state.progress.clone())
    }

    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.end.is_some() || state.is_complete
    }

    /// Whether the service has removed this process, which must then join again.
    pub(crate) fn is_unknown(&self) -> bool {
        let state = self.state.lock();
        let is_missing = |view: &MembershipView| view.member(state.own.id).is_none();
        state.is_known && !state.own.draining && state.view.as_ref().is_some_and(is_missing)
    }
}
