//! Batches prepared ahead of their use.
//!
//! A loader owns one background thread that turns shards (an epoch and ids of samples) into batches, a few ahead of the
//! replica that consumes them. Since every random number is keyed, working ahead changes nothing in the result. The
//! order of shards is the sampler's; moving a batch to a device is the replica's.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use crate::error::{Error, Result};

/// The samples of one future batch of one replica.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shard {
    /// The epoch they are shown in, from 0.
    pub epoch: usize,
    /// Their ids, in order; at least one.
    pub ids: Vec<u32>,
    /// Whether they are the replica's own. A replica without a sample computes one of another's, and it does not count.
    pub is_own: bool,
    /// Which copy of its sample each of them is, from 0; empty where there are no copies.
    pub copies: Vec<u32>,
    /// The id of another sample for each of them, which a task may mix into it.
    pub partners: Vec<u32>,
    /// Which copy of its sample each partner is, from 0; empty where there are no copies.
    pub partner_copies: Vec<u32>,
    /// The first sample of all replicas' shards: what is drawn by it is the same for all of them.
    pub first: u32,
}

impl Shard {
    /// How many samples of the replica's own it holds.
    pub fn samples(&self) -> usize {
        if self.is_own { self.ids.len() } else { 0 }
    }
}

/// An iterator over what `make` makes of each of some requests, in their order, with a thread that works ahead. It ends
/// after an error.
///
/// Dropping it ends the thread within the batch it is at, and waits for it.
#[derive(Debug)]
pub struct Loader<T> {
    // `None` only while dropping: the closed channel is what ends the thread.
    batches: Option<Receiver<Result<T>>>,
    worker: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Loader<T> {
    /// Starts the thread; at most `depth` finished batches wait for the consumer. `requests` may span many epochs.
    ///
    /// # Errors
    /// When the system grants no thread.
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
        let worker = std::thread::Builder::new().name("loader".into()).spawn(work).map_err(|reason| {
            Error::Data(format!(
                "cannot start the thread that loads data: {reason}; run fewer replicas on this machine"
            ))
        })?;
        Ok(Self { batches: Some(batches), worker: Some(worker) })
    }
}

impl<T> Loader<T> {
    /// Waits for the thread. A panic in it (a request outside the data set) is the consumer's.
    fn join(&mut self) {
        if let Some(Err(panic)) = self.worker.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl<T> Iterator for Loader<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let batch = self.batches.as_ref()?.recv().ok();
        if batch.is_none() {
            self.join();
        }
        batch
    }
}

impl<T> Drop for Loader<T> {
    fn drop(&mut self) {
        self.batches = None;
        self.join();
    }
}
