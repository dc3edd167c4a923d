//! A member's requests to the key-value store: each waits for its answers, until they come or it is cancelled.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use parking_lot::Mutex;

use super::Verdict;
use super::wire::FromService;

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
    /// Opens a request for so many answers: its id, and where they come; `None` once the last session has ended.
    pub(crate) fn open(&self, answers: usize) -> Option<(u64, mpsc::Receiver<Answer>)> {
        let id = self.count.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel();
        self.open.lock().as_mut()?.insert(id, Request { answers, sender });
        Some((id, receiver))
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

    /// Cancels all open requests. Why must be known before.
    pub(crate) fn cancel(&self) {
        self.open.lock().iter_mut().for_each(HashMap::clear);
    }

    /// Cancels all requests, later ones too. Why must be known before.
    pub(crate) fn close(&self) {
        self.open.lock().take();
    }
}
