//! Batches prepared ahead of their use.
//!
//! A loader owns a background thread that turns shards (an epoch and ids of samples) into batches, a few ahead of the
//! replica that consumes them. Since every random number is keyed, working ahead does not change the result.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use kiln_system::{Error, Result};

/// The samples of one future batch of one replica.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shard {
    /// Their epoch, from 0.
    pub epoch: usize,
    /// Their ids, in order; at least one.
    pub ids: Vec<u32>,
    /// Whether they are the replica's own. A replica without a sample computes one of another replica with weight 0.
    pub is_own: bool,
    /// Which copy of its sample each of them is, from 0; empty without copies.
    pub copies: Vec<u32>,
    /// For each of them, the id of another sample that a task may mix into it.
    pub partners: Vec<u32>,
    /// Which copy of its sample each partner is, from 0; empty without copies.
    pub partner_copies: Vec<u32>,
    /// The first sample of the micro-batch over all replicas, as a key for draws that all replicas share.
    pub first: u32,
    /// Whether only the targets are needed, such as classes: another stage sees the samples.
    pub targets_only: bool,
}

impl Shard {
    /// The number of the replica's own samples.
    pub fn samples(&self) -> usize {
        if self.is_own { self.ids.len() } else { 0 }
    }
}

/// An iterator over the results of `make` for some requests, in their order, with a thread that works ahead. It ends
/// after an error.
///
/// Dropping it ends the thread after its current batch, and waits for that.
#[derive(Debug)]
pub struct Loader<T> {
    // `None` only while dropping: the closed channel ends the thread.
    batches: Option<Receiver<Result<T>>>,
    worker: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Loader<T> {
    /// Starts the thread; at most `depth` finished batches wait for the consumer. `requests` may span many epochs.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new<R>(
        requests: impl Iterator<Item = R> + Send + 'static,
        make: impl Fn(R) -> Result<T> + Send + 'static,
        depth: usize,
    ) -> Result<Self> {
        let (sender, batches) = sync_channel(depth);
        let work = move || {
            for request in requests {
                let batch = make(request);
                let failed = batch.is_err();
                if sender.send(batch).is_err() || failed {
                    return;
                }
            }
        };
        // A panic of a replica's loader goes on in the replica, which reports it.
        let name = std::thread::current().name().map_or("loader".into(), |consumer| format!("{consumer}-loader"));
        let worker = std::thread::Builder::new().name(name).spawn(work).map_err(|reason| {
            Error::Data(format!(
                "cannot start the thread that loads data: {reason}; run fewer replicas on this machine"
            ))
        })?;
        Ok(Self { batches: Some(batches), worker: Some(worker) })
    }
}

impl<T> Iterator for Loader<T> {
    type Item = Result<T>;

    /// A panic of the thread, such as a request outside the data set, goes on here.
    fn next(&mut self) -> Option<Result<T>> {
        let batch = self.batches.as_ref()?.recv().ok();
        if batch.is_none()
            && let Some(Err(panic)) = self.worker.take().map(JoinHandle::join)
        {
            std::panic::resume_unwind(panic);
        }
        batch
    }
}

impl<T> Drop for Loader<T> {
    fn drop(&mut self) {
        self.batches = None;
        // A panic in a batch that is not awaited is ignored.
        drop(self.worker.take().map(JoinHandle::join));
    }
}
