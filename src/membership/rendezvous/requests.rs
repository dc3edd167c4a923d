//! A member's requests to the key-value store: each waits for its answers, until they come or it is cancelled.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Verdict;
use super::wire::{ENVELOPE_LIMIT, ENVELOPE_MARGIN, FromMember, FromService};

type Answer = Result<Vec<u8>, Verdict>;

struct Request {
    /// How many answers are still to come.
    answers: usize,
    sender: mpsc::Sender<Answer>,
}

pub(super) struct Requests {
    count: AtomicU64,
    /// The open requests by id; `None` once the last session has ended.
    open: Mutex<Option<HashMap<u64, Request>>>,
}

impl Default for Requests {
    fn default() -> Self {
        Self { count: AtomicU64::new(0), open: Mutex::new(Some(HashMap::new())) }
    }
}

impl Requests {
    /// Stores a value. `send` sends the message, `over` says why there is no answer.
    pub(crate) fn set(
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
    pub(crate) fn get(
        &self,
        keys: &[String],
        limit: Duration,
        send: impl FnOnce(FromMember),
        over: impl Fn() -> Verdict,
    ) -> Result<Vec<Vec<u8>>, Verdict> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        // 8 bytes are more than the overhead of a key.
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
        let asked = self.open.lock().as_mut().map(|open| open.insert(id, Request { answers, sender })).is_some();
        if !asked {
            return Err(over());
        }
        send(id);
        // Every request is answered or cancelled, so this ends.
        (0..answers).map(|_| receiver.recv().unwrap_or_else(|_| Err(over()))).collect()
    }

    pub(crate) fn take_answer(&self, message: FromService) -> Option<FromService> {
        let (id, answer) = match message {
            FromService::Value(id, value) => (id, Ok(value)),
            FromService::Denied(id, reason) => (id, Err(Verdict(reason))),
            other => return Some(other),
        };
        let mut open = self.open.lock();
        let request = open.as_mut().and_then(|open| open.get_mut(&id))?;
        request.answers -= 1;
        let last = request.answers == 0 || answer.is_err();
        // The caller may have failed on an earlier answer.
        let _ = request.sender.send(answer);
        if last {
            open.as_mut().and_then(|open| open.remove(&id));
        }
        None
    }

    /// Cancels all open requests. What `over` returns must be set before.
    pub(crate) fn cancel(&self) {
        self.open.lock().iter_mut().for_each(HashMap::clear);
    }

    /// Cancels all requests, later ones too. What `over` returns must be set before.
    pub(crate) fn close(&self) {
        self.open.lock().take();
    }
}
