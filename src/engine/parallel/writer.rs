//! Saving during training: a thread writes one state at a time, while the replicas compute.
//!
//! A replica that saves takes the [`Slot`], copies the state to the host and trains on. The slot is free again when the
//! state is written, so that no more than one copy waits in memory, however slow the disk is.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use kiln_system::{Error, Result};
use parking_lot::{Condvar, Mutex};

/// What is left to do to save a state, on any thread.
pub type Write = Box<dyn FnOnce() -> Result<()> + Send>;

/// Room for one state that is not written yet. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot(Arc<(Mutex<bool>, Condvar)>);

/// The slot, until this is dropped.
pub(super) struct Taken(Slot);

impl Slot {
    /// Whether it gets free within `limit`.
    pub(super) fn is_free_within(&self, limit: Duration) -> bool {
        !self.0.1.wait_while_for(&mut self.0.0.lock(), |taken| *taken, limit).timed_out()
    }

    pub(super) fn take(&self) -> Taken {
        let mut taken = self.0.0.lock();
        self.0.1.wait_while(&mut taken, |taken| *taken);
        *taken = true;
        Taken(self.clone())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        *self.0.0.0.lock() = false;
        self.0.0.1.notify_all();
    }
}

/// The thread that writes, if a state is under way.
#[derive(Debug, Default)]
pub(super) struct Writer(Option<JoinHandle<Result<()>>>);

impl Writer {
    /// Starts to write a state, which holds the slot until it is written.
    pub(super) fn start(&mut self, write: Write, slot: Taken) -> Result<()> {
        let before = self.finish();
        let work = move || {
            let _slot = slot;
            write()
        };
        let thread = Builder::new().name("checkpoint".into()).spawn(work);
        self.0 = Some(thread.map_err(|reason| {
            let rule = "if a checkpoint was written, go on with --resume latest";
            Error::Training(format!("cannot start the thread that writes a checkpoint: {reason}; {rule}"))
        })?);
        before
    }

    /// The error of a state that could not be written, if that is known by now.
    pub(super) fn check(&mut self) -> Result<()> {
        if self.0.as_ref().is_some_and(JoinHandle::is_finished) { self.finish() } else { Ok(()) }
    }

    /// Waits for the state that is under way.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), |thread| {
            thread.join().unwrap_or_else(|_| Err(Error::Training("the thread that writes checkpoints panicked".into())))
        })
    }
}
