//! The client of the rendezvous: a member's interface for the rest of Kiln.
//!
//! All calls block and may come from any thread; a thread of the client holds the session and sends heartbeats. In a
//! job of fixed membership the session lasts as long as the job: every wait ends with an answer or with the verdict. In
//! an elastic one the thread reconnects after a loss and reports what this process holds and computes, so that the
//! service may be a restarted one. No member of an elastic run updates its state without a **lease**: an answer of the
//! service to a heartbeat that was sent so recently that the service cannot have declared this member lost since, nor
//! can another one have been elected (see [`election`](super::election)).

use std::fmt;
use std::sync::{Arc, mpsc as blocking};
use std::time::{Duration, Instant};

use kiln_system::{Error, Result};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use super::admission::raise_limit;
use super::connection::Dialer;
use super::member_state::{Attempt, End, Instruction, MemberState};
use super::membership::{MemberStatus, MembershipView, Phase, Placement, ProcessInfo, Ready, StateVersion};
use super::reconnector::{BeforeAttempt, Reconnector};
use super::roster::strict::GRACE;
use super::secret::random_bytes;
use super::shared_state::{POLL, SharedState};
use super::wire::{ENVELOPE_LIMIT, ENVELOPE_MARGIN, FromMember};
use super::{Terms, Verdict};
use crate::status::Next;

/// How long a leave may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest activity or symptom, in bytes.
const LONGEST_TEXT: usize = 4096;

/// A member of the job. Dropping it without [`leave`](Self::leave) counts as a loss.
pub struct Client {
    shared: Arc<SharedState>,
    timeout: Duration,
    commands: mpsc::UnboundedSender<FromMember>,
    /// Disconnected when the last session has ended.
    ended: Mutex<blocking::Receiver<()>>,
    runtime: Option<Runtime>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.shared.state.lock().own.id)
    }
}

impl Client {
    /// Joins the job at `address` (`host:port`, or several joined by commas).
    ///
    /// Returns when all members of a fixed job have joined; in an elastic one, when the service has admitted this
    /// process or said that the run is complete. A usage error if the service refuses this process (secret, rank, size,
    /// configuration, version); [`Error::PeerLost`] if the service, or others, are absent longer than `absence_limit`.
    pub fn join(
        address: &str,
        terms: &Terms,
        own: ProcessInfo,
        absence_limit: Duration,
        before_attempt: BeforeAttempt,
    ) -> Result<Self> {
        terms.check()?;
        raise_limit()?;
        let failed = |error| Error::PeerLost(format!("cannot start the thread of the rendezvous: {error}"));
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("member").enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let within = runtime.enter();
        let dialers = Dialer::all(address, terms)?;
        drop(within);
        let id = u64::from_le_bytes(random_bytes());
        let shared = Arc::new(SharedState::new(ProcessInfo { id, ..own }, terms, address, absence_limit));
        let (commands, queue) = mpsc::unbounded_channel();
        let (running, ended) = blocking::channel::<()>();
        let reconnector = Reconnector { dialers, attempts: 0, last_success: 0, shared: shared.clone(), before_attempt };
        runtime.spawn(async move {
            // Dropped when the last session has ended.
            let _running = running;
            reconnector.run(queue).await;
        });
        let (timeout, ended) = (terms.timeout, Mutex::new(ended));
        let client = Self { shared, timeout, commands, ended, runtime: Some(runtime) };
        client.shared.wait(|state| state.is_admitted().then_some(()))?;
        Ok(client)
    }

    /// All members, those with a rank in its order.
    pub fn members(&self) -> Vec<MemberStatus> {
        self.shared.state.lock().view.as_ref().map(|view| view.members.clone()).unwrap_or_default()
    }

    /// Reports that this process has stopped computing and what it holds, with the reason if it stopped on its own;
    /// waits for the next generation with a part for it.
    ///
    /// Calls `keep` to save the state if too few members are left for a generation and this process comes first among
    /// them, or if it wants to leave and the service is unreachable.
    pub fn next(
        &self,
        holds: StateVersion,
        devices: usize,
        mut reason: Option<String>,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Next<MembershipView>> {
        let mut is_saved = false;
        let mut left = self.shared.state.lock().stop_computing(holds, devices);
        loop {
            let ready = Ready { generation: left, holds, devices, reason: reason.take() };
            let _ = self.commands.send(FromMember::Ready(ready));
            match self.shared.wait(|state| state.instruction(left, is_saved))? {
                Instruction::Enter(view) => {
                    self.shared.state.lock().own.computing = Some(view.placement());
                    return Ok(Next::Begin(view));
                }
                Instruction::Missed(generation) => left = generation,
                Instruction::Save => {
                    is_saved = true;
                    if self.shared.state.lock().must_leave_alone() {
                        tracing::warn!("the rendezvous does not answer; this process leaves the run without it");
                    }
                    keep()?;
                }
                Instruction::Leave => {
                    self.shared.state.lock().end = Some(End::Left);
                    return Ok(Next::Left);
                }
                Instruction::Finish => return Ok(Next::Complete),
            }
        }
    }

    /// Calls `act` on a new thread when the current generation, or the fixed job, is over; at once if it is already.
    pub fn when_over(&self, act: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.when_over = Some(Box::new(act));
        state.act_if_over(&self.shared.requests);
    }

    /// Waits for an attempt to connect other than `last`; `None` once this process has left the job.
    pub fn next_attempt(&self, last: Option<Attempt>) -> Option<(Attempt, Placement)> {
        let other = |state: &MemberState| {
            let (attempt, placement) = state.pending()?;
            (Some(attempt) != last).then(|| (attempt, placement.clone()))
        };
        self.shared.wait(other).ok()
    }

    pub fn expects(&self, attempt: Attempt) -> bool {
        self.shared.state.lock().pending().is_some_and(|(current, _)| current == attempt)
    }

    pub fn connected(&self, attempt: Attempt, failure: Option<&str>) {
        let generation = attempt.generation;
        let _ = self.commands.send(match failure {
            None => FromMember::Connected(generation),
            Some(why) => FromMember::Trouble(self.shared.state.lock().progress.clone(), generation, cut(why).into()),
        });
    }

    /// Whether others compute without this process and have not begun a later attempt to connect.
    pub fn is_left_out(&self, attempt: Attempt) -> bool {
        let state = self.shared.state.lock();
        let is_running = state.view.as_ref().is_some_and(|view| view.phase == Phase::Running);
        is_running && state.own.computing.is_none() && state.pending().is_none_or(|(it, _)| it == attempt)
    }

    pub fn attempt(&self, generation: u64) -> Attempt {
        Attempt { session: self.shared.state.lock().session, generation }
    }

    pub fn is_ending(&self) -> bool {
        self.shared.state.lock().is_ending()
    }

    /// Waits until the lease is valid; fails once the generation is over.
    pub fn confirm(&self) -> std::result::Result<(), Verdict> {
        let confirmed = self.shared.wait(MemberState::confirm);
        confirmed.unwrap_or_else(|error| Err(error.to_string())).map_err(Verdict)
    }

    /// What a process without replicas waits for, for people.
    pub fn awaited(&self) -> String {
        self.shared.state.lock().awaited()
    }

    pub fn end_reason(&self) -> Option<String> {
        self.shared.state.lock().end_reason()
    }

    /// Publishes `value` under `key`, which begins with the generation in an elastic job. Writing other bytes to the
    /// same key is an error.
    pub fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), Verdict> {
        let size = key.len().saturating_add(value.len());
        let most = ENVELOPE_LIMIT - ENVELOPE_MARGIN;
        if size > most {
            return Err(Verdict(format!("key and value have '{size}' bytes, but at most {most} fit")));
        }
        let (key, value) = (key.to_string(), value.to_vec());
        self.ask(1, |id| FromMember::Set { id, key, value }).map(drop)
    }

    /// Waits for the values of `keys`; an error that names the missing ones after `limit`.
    pub fn get(&self, keys: &[String], limit: Duration) -> std::result::Result<Vec<Vec<u8>>, Verdict> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        // 8 bytes are more than the overhead of a key.
        let size = keys.iter().map(|key| key.len().saturating_add(8)).fold(0, usize::saturating_add);
        if size > ENVELOPE_LIMIT - ENVELOPE_MARGIN {
            let count = keys.len();
            return Err(Verdict(format!("'{count}' keys are too many for one request; ask for fewer at a time")));
        }
        self.ask(keys.len(), |id| FromMember::Get { id, keys: keys.to_vec(), limit })
    }

    fn ask(
        &self,
        answers: usize,
        message: impl FnOnce(u64) -> FromMember,
    ) -> std::result::Result<Vec<Vec<u8>>, Verdict> {
        let over = || Verdict(self.end_reason().unwrap_or_else(|| "the connection to the rendezvous was lost".into()));
        let (id, receiver) = self.shared.requests.open(answers).ok_or_else(over)?;
        // The end comes either before this lock, and the request is cancelled here, or later, and is cancelled then.
        let state = self.shared.state.lock();
        if state.disconnected_since.is_some() || state.end_reason().is_some() {
            self.shared.requests.cancel();
        } else {
            let _ = self.commands.send(message(id));
        }
        drop(state);
        // Every request is answered or cancelled, so this ends.
        (0..answers).map(|_| receiver.recv().unwrap_or_else(|_| Err(over()))).collect()
    }

    pub fn id(&self) -> u64 {
        self.shared.state.lock().own.id
    }

    /// Sets all but the activity for the next heartbeat; see [`Progress`](crate::Progress).
    pub fn progress(&self, step: u64, images_per_second: f64, waited: [f64; 2]) {
        let progress = &mut self.shared.state.lock().progress;
        (progress.step, progress.images_per_second, progress.waited) = (step, images_per_second, waited);
    }

    /// Sets the activity for the next heartbeat, such as `step 12, gradient all-reduce`. In a job of fixed membership
    /// call it once before every collective: the number of calls shows which member is behind.
    pub fn doing(&self, activity: &str) {
        let mut state = self.shared.state.lock();
        state.progress.step += u64::from(state.is_strict());
        state.progress.activity.clear();
        state.progress.activity.push_str(cut(activity));
    }

    /// Reports that a collective failed; returns why. In a job of fixed membership it waits for the verdict, which
    /// comes within 2 s, or after the timeout if the service is lost.
    pub fn trouble(&self, symptom: &str) -> Verdict {
        let (report, is_strict) = {
            let state = self.shared.state.lock();
            let generation = state.own.computing.as_ref().map_or(0, |placement| placement.generation);
            (FromMember::Trouble(state.progress.clone(), generation, cut(symptom).into()), state.is_strict())
        };
        let is_told = self.commands.send(report).is_ok();
        if !is_strict {
            return Verdict(self.end_reason().unwrap_or_else(|| symptom.into()));
        }
        let deadline = Instant::now() + if is_told { GRACE + self.timeout + LEAVE_TIMEOUT } else { Duration::ZERO };
        let unknown = || format!("a collective failed, and the rendezvous did not say why: {}", cut(symptom));
        let verdict = |state: &MemberState| state.end_reason().or_else(|| (Instant::now() >= deadline).then(unknown));
        let verdict = self.shared.wait(verdict).unwrap_or_else(|error| error.to_string());
        self.shared.end(End::Lost(verdict.clone()));
        Verdict(verdict)
    }

    /// Asks to leave in good order; [`Client::next`] returns [`Next::Left`] when it may.
    pub fn drain(&self) {
        self.shared.change(MemberState::request_leave);
        let _ = self.commands.send(FromMember::Drain);
        // While replicas wait for other processes, no other thread checks whether the service still answers.
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            while shared.state.lock().end.is_none() {
                std::thread::sleep(POLL);
                shared.change(|_| ());
            }
        });
    }

    /// Leaves the job: finished, or `failed` for this reason. Returns when the service knows, within 1 s.
    pub fn leave(&self, failed: Option<&str>) {
        let failed = failed.map(|reason| cut(reason).into());
        let progress = {
            let mut state = self.shared.state.lock();
            state.end.get_or_insert(End::Left);
            state.progress.clone()
        };
        if self.commands.send(FromMember::Leave(progress, failed)).is_ok() {
            // Nothing is ever sent; this waits for the disconnection.
            let _ = self.ended.lock().recv_timeout(LEAVE_TIMEOUT);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// At most [`LONGEST_TEXT`] bytes of `text`.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}
