//! A member: one process' place in the job, as the rest of Kiln sees it.
//!
//! All calls block and may come from any thread; the network is left to a `link` on a thread of its own, which also
//! keeps the heart beating while this process computes. Every wait ends: with an answer, or with the verdict.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as blocking};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use super::connection::{Caller, Duty};
use super::judge::GRACE;
use super::link::Link;
use super::requests::Requests;
use super::verdict::Fate;
use super::wire::{Activity, FromMember, FromService, Leave, Trouble};
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
        let caller = Caller::new(address, terms)?;
        drop(within);
        let link = Link { caller, me, shared: Arc::clone(&shared) };
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
        self.verdict().map_or(Ok(()), Err)?;
        self.shared.requests.set(key, value, |message| self.send(message), || self.over())
    }

    /// The values of `keys` as soon as all are set by anybody; an error that names missing ones after `limit`.
    pub fn get(&self, keys: &[String], limit: Duration) -> std::result::Result<Vec<Vec<u8>>, Verdict> {
        self.verdict().map_or(Ok(()), Err)?;
        self.shared.requests.get(keys, limit, |message| self.send(message), || self.over())
    }

    fn verdict(&self) -> Option<Verdict> {
        self.shared.fate.verdict()
    }

    /// Why a question has no answer.
    fn over(&self) -> Verdict {
        self.verdict().unwrap_or_else(|| Verdict("this process has left the job".into()))
    }

    /// A link that has ended has given up all questions.
    fn send(&self, message: FromMember) {
        let _ = self.commands.send(message);
        // The verdict may have come between the question and its being noted.
        if self.verdict().is_some() {
            self.shared.requests.give_up();
        }
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
        let told = self.commands.send(FromMember::Trouble(Trouble { activity, symptom, generation: 0 }));
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
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What the callers' threads and the link's thread share.
#[derive(Default)]
pub(super) struct Shared {
    pub fate: Fate,
    pub requests: Requests,
    doing: Mutex<Activity>,
}

impl Shared {
    pub fn activity(&self) -> Activity {
        self.doing().clone()
    }

    fn doing(&self) -> MutexGuard<'_, Activity> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Duty for Shared {
    fn hear(&self, message: FromService) {
        if let Some(FromService::Verdict(verdict)) = self.requests.hear(message) {
            self.fate.decide(Verdict(verdict));
            // Callers learn the verdict now; the session stays for the leave.
            self.requests.give_up();
        }
    }

    fn beat(&self) -> FromMember {
        FromMember::Beat(self.activity())
    }

    fn is_over(&self) -> bool {
        self.fate.verdict().is_some()
    }
}

/// At most [`LONGEST_TEXT`] bytes of `text`.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}
