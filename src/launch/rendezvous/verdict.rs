//! The verdict as a member holds it: one line, set once, and everybody who waits for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Why the job is over: one line that names the process and how it is known. Also what a single request answers that
/// could not be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Verdict(pub String);

type Act = Box<dyn FnOnce(Verdict) + Send>;

/// The verdict to come. The first one stays.
#[derive(Default)]
pub(super) struct Fate {
    state: Mutex<State>,
    decided: Condvar,
}

#[derive(Default)]
struct State {
    verdict: Option<Verdict>,
    acts: Vec<Act>,
}

impl Fate {
    /// The verdict, if there is one by now.
    pub fn verdict(&self) -> Option<Verdict> {
        self.state().verdict.clone()
    }

    /// Sets the verdict unless there is one; answers with the one that counts.
    pub fn decide(&self, verdict: Verdict) -> Verdict {
        let mut state = self.state();
        let verdict = state.verdict.get_or_insert(verdict).clone();
        let acts = std::mem::take(&mut state.acts);
        drop(state);
        self.decided.notify_all();
        acts.into_iter().for_each(|act| run(act, verdict.clone()));
        verdict
    }

    /// Waits for the verdict, at most `limit`.
    pub fn wait(&self, limit: Duration) -> Option<Verdict> {
        let waited = self.decided.wait_timeout_while(self.state(), limit, |state| state.verdict.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.verdict.clone()
    }

    /// Calls `act` on a thread of its own as soon as there is a verdict.
    pub fn then(&self, act: Act) {
        let mut state = self.state();
        match state.verdict.clone() {
            None => state.acts.push(act),
            Some(verdict) => run(act, verdict),
        }
    }

    /// No code of others runs under this lock, so what a panic elsewhere leaves behind is whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(act: Act, verdict: Verdict) {
    let thread = std::thread::Builder::new().name("verdict".into());
    if let Err(error) = thread.spawn(move || act(verdict)) {
        tracing::warn!("cannot start a thread to act on the verdict: {error}");
    }
}
