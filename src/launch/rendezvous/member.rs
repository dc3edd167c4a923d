//! A member: one process' place in the job, as the rest of Kiln sees it.
//!
//! All calls block and may come from any thread; the network is left to a `link` on a thread of its own, which also
//! keeps the heart beating while this process computes. Every wait ends: with an answer, or with the verdict.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as blocking};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use super::endpoint::endpoint;
use super::judge::GRACE;
use super::link::Link;
use super::verdict::Fate;
use super::wire::{
    Activity, Denied, ENVELOPE_LIMIT, ENVELOPE_MARGIN, FromMember, FromService, Get, Leave, Set, Trouble,
};
use super::{Introduction, Terms, Verdict};
use crate::error::{Error, Result};

/// How long a leave may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// An activity is a place in the program, not an essay; a symptom may quote an engine.
const LONGEST_TEXT: usize = 4096;

/// This process' place in the job. Dropping it without [`leave`](Self::leave) looks to the others like its death.
pub struct Member {
    members: Vec<Introduction>,
    timeout: Duration,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<FromMember>,
    requests: AtomicU64,
    /// Disconnected when the session has ended.
    ended: Mutex<blocking::Receiver<()>>,
    runtime: Option<Runtime>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member(one of {})", self.members.len())
    }
}

impl Member {
    /// Meets the others at `address` (`host:port`); returns when all are there.
    ///
    /// Tries to connect until `patience` is over. A usage error if the service refuses what this process was given
    /// (secret, rank, size, configuration, version), [`Error::PeerLost`] if others did not come or are gone.
    pub fn join(address: &str, terms: &Terms, me: Introduction, patience: Duration) -> Result<Self> {
        terms.check()?;
        let failed = |error| Error::PeerLost(format!("cannot start the thread of the rendezvous: {error}"));
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("member").enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let within = runtime.enter();
        let endpoint = endpoint(address, terms)?;
        drop(within);
        let link = Link { endpoint, address: address.into(), terms: terms.clone(), me, shared: Arc::clone(&shared) };
        let (commands, queue) = mpsc::unbounded_channel();
        let ((joined, meeting), (running, ended)) = (blocking::channel(), blocking::channel::<()>());
        runtime.spawn(async move {
            // Held until the session has ended.
            let _running = running;
            link.run(patience, queue, joined).await;
        });
        let lost = || Error::PeerLost("the thread of the rendezvous ended before anybody came".into());
        let met = meeting.recv().unwrap_or_else(|_| Err(lost()));
        match met {
            Ok(members) => Ok(Self {
                members,
                timeout: terms.timeout,
                shared,
                commands,
                requests: AtomicU64::new(0),
                ended: Mutex::new(ended),
                runtime: Some(runtime),
            }),
            Err(error) => {
                // Does not wait for a name server that hangs.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Everybody, in rank order.
    pub fn members(&self) -> &[Introduction] {
        &self.members
    }

    /// Publishes `value` under `key`. The first write of a key stays: another one with other bytes is an error.
    pub fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), Verdict> {
        let most = ENVELOPE_LIMIT - ENVELOPE_MARGIN;
        if key.len().saturating_add(value.len()) > most {
            return Err(Verdict(format!(
                "key and value have '{}' bytes, but at most {most} fit",
                key.len() + value.len()
            )));
        }
        let (key, value) = (key.to_string(), value.to_vec());
        self.request(1, |id| FromMember::Set(Set { id, key, value })).map(drop)
    }

    /// The values of `keys` as soon as all are set by anybody; an error that names missing ones after `limit`.
    pub fn get(&self, keys: &[String], limit: Duration) -> std::result::Result<Vec<Vec<u8>>, Verdict> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let most = ENVELOPE_LIMIT - ENVELOPE_MARGIN;
        // 8 bytes are more than what a key needs beside its own.
        if keys.iter().map(|key| key.len().saturating_add(8)).fold(0, usize::saturating_add) > most {
            return Err(Verdict(format!(
                "'{}' keys are too many for one request; ask for fewer at a time",
                keys.len()
            )));
        }
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.request(keys.len(), |id| FromMember::Get(Get { id, keys: keys.to_vec(), limit }))
    }

    /// Notes what this process does from now on, such as `step 12, gradient all-reduce`. Call it once before every
    /// collective: the number of calls tells who is behind. It only writes a note for the next heartbeat.
    pub fn doing(&self, activity: &str) {
        let mut doing = self.shared.doing();
        doing.count += 1;
        doing.text.clear();
        doing.text.push_str(cut(activity));
    }

    /// Reports that a collective failed or timed out, and waits for the verdict: who is to blame. It comes after 2 s
    /// at the latest, or after the timeout if the service itself is lost.
    pub fn trouble(&self, symptom: &str) -> Verdict {
        let (activity, symptom) = (Some(self.shared.activity()), cut(symptom).to_string());
        let unknown = format!("a collective failed, and the rendezvous did not say why: {symptom}");
        let told = self.commands.send(FromMember::Trouble(Trouble { activity, symptom }));
        let limit = if told.is_ok() { GRACE + self.timeout + FAREWELL } else { Duration::ZERO };
        self.shared.fate.wait(limit).unwrap_or_else(|| self.shared.fate.decide(Verdict(unknown)))
    }

    /// Calls `act` on a thread of its own as soon as there is a verdict, even if this process asks for nothing.
    pub fn on_verdict(&self, act: impl FnOnce(Verdict) + Send + 'static) {
        self.shared.fate.then(Box::new(act));
    }

    /// Takes leave: this process has finished, or `failed` for the reason given, which becomes the others' verdict.
    /// Returns when the service knows, at the latest after 1 s.
    pub fn leave(&self, failed: Option<&str>) {
        let (failed, activity) = (failed.map(|reason| cut(reason).into()), Some(self.shared.activity()));
        if self.commands.send(FromMember::Leave(Leave { failed, activity })).is_ok() {
            // Disconnected is what is waited for; nothing is ever sent.
            let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(FAREWELL);
        }
    }

    fn request(
        &self,
        answers: usize,
        message: impl FnOnce(u64) -> FromMember,
    ) -> std::result::Result<Vec<Vec<u8>>, Verdict> {
        let id = self.requests.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = blocking::channel();
        let over = || self.shared.fate.verdict().unwrap_or_else(|| Verdict("this process has left the job".into()));
        if self.shared.fate.verdict().is_some() || !self.shared.expect(id, Call { answers, sender }) {
            return Err(over());
        }
        let _ = self.commands.send(message(id));
        // The link answers every call or gives all of them up, so this ends.
        (0..answers).map(|_| receiver.recv().unwrap_or_else(|_| Err(over()))).collect()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A request that waits for so many more answers.
pub(super) struct Call {
    answers: usize,
    sender: blocking::Sender<std::result::Result<Vec<u8>, Verdict>>,
}

/// What the callers' threads and the link's thread share.
pub(super) struct Shared {
    pub fate: Fate,
    doing: Mutex<Activity>,
    /// `None` once the session has ended.
    calls: Mutex<Option<HashMap<u64, Call>>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { fate: Fate::default(), doing: Mutex::default(), calls: Mutex::new(Some(HashMap::new())) }
    }
}

impl Shared {
    pub fn activity(&self) -> Activity {
        self.doing().clone()
    }

    /// Takes in a message of the service.
    pub fn hear(&self, message: FromService) {
        match message {
            FromService::Value(it) => self.answer(it.id, Ok(it.value)),
            FromService::Denied(Denied { id, reason }) => self.answer(id, Err(Verdict(reason))),
            FromService::Verdict(verdict) => {
                self.fate.decide(Verdict(verdict));
                // Callers learn the verdict now; the session stays for the leave.
                self.calls().iter_mut().for_each(HashMap::clear);
            }
            _ => {}
        }
    }

    /// Gives up all calls, also those to come. The fate must be decided before.
    pub fn hang_up(&self) {
        self.calls().take();
    }

    fn expect(&self, id: u64, call: Call) -> bool {
        let mut calls = self.calls();
        let open = calls.as_mut().filter(|_| self.fate.verdict().is_none());
        open.map(|calls| calls.insert(id, call)).is_some()
    }

    fn answer(&self, id: u64, answer: std::result::Result<Vec<u8>, Verdict>) {
        let mut calls = self.calls();
        let Some(call) = calls.as_mut().and_then(|calls| calls.get_mut(&id)) else { return };
        call.answers -= 1;
        let last = call.answers == 0 || answer.is_err();
        // A caller that failed on an earlier answer does not wait for this one.
        let _ = call.sender.send(answer);
        if last {
            calls.as_mut().and_then(|calls| calls.remove(&id));
        }
    }

    fn doing(&self) -> MutexGuard<'_, Activity> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn calls(&self) -> MutexGuard<'_, Option<HashMap<u64, Call>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// At most [`LONGEST_TEXT`] bytes of `text`.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}
