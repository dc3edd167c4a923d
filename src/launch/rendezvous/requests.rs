//! A member's questions to the key-value store: each waits for its answers, until they come or all are given up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::Verdict;
use super::wire::{ENVELOPE_LIMIT, ENVELOPE_MARGIN, FromMember, FromService};

type Answer = Result<Vec<u8>, Verdict>;

/// A question that waits for so many more answers.
struct Call {
    answers: usize,
    sender: mpsc::Sender<Answer>,
}

/// The questions that are open.
pub(super) struct Requests {
    count: AtomicU64,
    /// `None` once nobody will answer any more.
    calls: Mutex<Option<HashMap<u64, Call>>>,
}

impl Default for Requests {
    fn default() -> Self {
        Self { count: AtomicU64::new(0), calls: Mutex::new(Some(HashMap::new())) }
    }
}

impl Requests {
    /// Stores a value: `send` passes the message on, `over` says why there is no answer.
    pub fn set(
        &self,
        key: &str,
        value: &[u8],
        send: impl FnOnce(FromMember),
        over: impl Fn() -> Verdict,
    ) -> Result<(), Verdict> {
        let size = key.len().saturating_add(value.len());
        let most = ENVELOPE_LIMIT - ENVELOPE_MARGIN;
        if size > most {
            return Err(Verdict(format!("key and value have '{size}' bytes, but at most {most} fit")));
        }
        let (key, value) = (key.to_string(), value.to_vec());
        self.ask(1, |id| send(FromMember::Set { id, key, value }), over).map(drop)
    }

    /// Asks for the values of `keys`, each as soon as it is there and within `limit`.
    pub fn get(
        &self,
        keys: &[String],
        limit: Duration,
        send: impl FnOnce(FromMember),
        over: impl Fn() -> Verdict,
    ) -> Result<Vec<Vec<u8>>, Verdict> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        // 8 bytes are more than what a key needs beside its own.
        let size = keys.iter().map(|key| key.len().saturating_add(8)).fold(0, usize::saturating_add);
        if size > ENVELOPE_LIMIT - ENVELOPE_MARGIN {
            let count = keys.len();
            return Err(Verdict(format!("'{count}' keys are too many for one request; ask for fewer at a time")));
        }
        self.ask(keys.len(), |id| send(FromMember::Get { id, keys: keys.to_vec(), limit }), over)
    }

    fn ask(&self, answers: usize, send: impl FnOnce(u64), over: impl Fn() -> Verdict) -> Result<Vec<Vec<u8>>, Verdict> {
        let id = self.count.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel();
        let asked = self.calls().as_mut().map(|calls| calls.insert(id, Call { answers, sender })).is_some();
        if !asked {
            return Err(over());
        }
        send(id);
        // Every call is answered or given up, so this ends.
        (0..answers).map(|_| receiver.recv().unwrap_or_else(|_| Err(over()))).collect()
    }

    /// Takes in an answer; any other message of the service comes back.
    pub fn hear(&self, message: FromService) -> Option<FromService> {
        let (id, answer) = match message {
            FromService::Value(id, value) => (id, Ok(value)),
            FromService::Denied(id, reason) => (id, Err(Verdict(reason))),
            other => return Some(other),
        };
        let mut calls = self.calls();
        let call = calls.as_mut().and_then(|calls| calls.get_mut(&id))?;
        call.answers -= 1;
        let last = call.answers == 0 || answer.is_err();
        // A caller that failed on an earlier answer does not wait for this one.
        let _ = call.sender.send(answer);
        if last {
            calls.as_mut().and_then(|calls| calls.remove(&id));
        }
        None
    }

    /// Gives up all calls that wait. Why must be known before.
    pub fn give_up(&self) {
        self.calls().iter_mut().for_each(HashMap::clear);
    }

    /// Gives up all calls, also those to come. Why must be known before.
    pub fn close(&self) {
        self.calls().take();
    }

    /// Every change is whole before anything could panic.
    fn calls(&self) -> MutexGuard<'_, Option<HashMap<u64, Call>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
