//! NCCL, NVIDIA's engine for collectives between GPUs, for the tensors of a run of several processes, or of one with
//! several devices: gradients, batch-norm's statistics, the averaged model, and what stages hand on to other processes.
//!
//! Each device is one rank; the replicas of a device are added up before. Losses and checkpoints do not go over NCCL.
//! NCCL matches calls by their order, and calls of two communicators may wait for each other on a device. So all
//! collectives of a stage share one communicator and come one after the other, in the order in which the replicas
//! compute, which is the same on all of them; only tensors between stages have others (`parallel/wire.rs`).
//! Communicators do not block: every call is watched until its limit, and then aborted, so that a lost process is a
//! symptom here as with Gloo, and the rendezvous decides which one it was. The identifier that joins the ranks travels
//! through the rendezvous; the connections themselves are neither authenticated nor encrypted.

mod alone;
mod library;
mod transport;

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kiln_ops::Memory;
use kiln_ops::nvidia::{Event, Stream};
use library::{Call, Code, Communicator, IN_PROGRESS, SUCCESS, StreamHandle, UniqueId, kind};
use parking_lot::Mutex;

use super::engine::{DeviceEngine, KeyStore, Mark, Symptom};

pub use library::{Library, Version};
pub use transport::{Transport, name_interface};

/// The first pause between two looks at a call, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// One device's rank in a communicator.
pub struct Nccl {
    library: Arc<Library>,
    size: usize,
    rank: usize,
    /// `None` after an error: it was aborted.
    communicator: Mutex<Option<Owned>>,
    /// `None` if tensors are in the host's memory.
    stream: Option<Arc<Stream>>,
    is_closed: Arc<AtomicBool>,
}

/// A communicator, which is freed at the end.
struct Owned {
    library: Arc<Library>,
    communicator: Communicator,
}

// SAFETY: a communicator may be used by any thread, one at a time.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // Not "finalised", which would wait for the other ranks: no call is under way, and the exchange of losses after
        // each step shows that all ranks have their results.
        // SAFETY: it was not aborted before.
        unsafe { self.library.abort(self.communicator) };
    }
}

impl Nccl {
    /// Joins the ranks from `first` of `size`, one for each of this process's `devices`, with those of the other
    /// processes, which must call this at about the same time. Tensors are on these CUDA devices, or with `None` in the
    /// host's memory. `name` tells the communicators of a store apart; setting `is_closed` ends every wait.
    ///
    /// # Errors
    /// Those of NCCL, of CUDA's driver and of the store, and the end of `limit`.
    pub fn connect(
        library: &Arc<Library>,
        [first, size]: [usize; 2],
        devices: &[Option<usize>],
        (store, name): (&dyn KeyStore, &str),
        is_closed: &Arc<AtomicBool>,
        limit: Duration,
    ) -> Result<Vec<Self>, Symptom> {
        let key = format!("nccl/identifier of {name}");
        if first == 0 {
            store.set(&key, &library.unique_id().map_err(Symptom)?.0).map_err(Symptom)?;
        }
        let shown = store.get(&[key]).map_err(Symptom)?.swap_remove(0);
        let id = UniqueId(shown.try_into().map_err(|_| Symptom("NCCL: the identifier has another length".into()))?);
        let join = |(rank, device): (usize, &Option<usize>)| {
            let stream = device.map(Stream::new).transpose()?;
            let (library, is_closed) = (library.clone(), is_closed.clone());
            let new = Self { library, size, rank, communicator: Mutex::default(), stream, is_closed };
            new.begin(id, limit).map(|()| new)
        };
        // Each of them waits for all others.
        let joined: Result<Vec<Self>, String> = std::thread::scope(|scope| {
            let join = &join;
            let threads: Vec<_> = (first..).zip(devices).map(|rank| scope.spawn(move || join(rank))).collect();
            threads.into_iter().map(|thread| thread.join().expect("joining does not panic")).collect()
        });
        joined.map_err(Symptom)
    }

    fn begin(&self, id: UniqueId, limit: Duration) -> Result<(), String> {
        let (code, communicator) = self.within(|| Ok(self.library.begin(self.rank, self.size, id)))?;
        if communicator.is_null() {
            return Err(self.library.words(code, null_mut()));
        }
        let owned = Owned { library: self.library.clone(), communicator };
        self.watch(communicator, code, limit)?;
        *self.communicator.lock() = Some(owned);
        Ok(())
    }

    /// Runs `work` with the device as the thread's current one.
    fn within<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        match &self.stream {
            Some(stream) => stream.within(work),
            None => work(),
        }
    }

    /// Waits until the last call, which returned `code`, and the work that it queued are done.
    fn watch(&self, communicator: Communicator, mut code: Code, limit: Duration) -> Result<(), String> {
        let (start, [mut pause, longest]) = (Instant::now(), PAUSES);
        loop {
            match code {
                SUCCESS if self.stream.as_ref().map_or(Ok(true), |stream| stream.is_done())? => return Ok(()),
                SUCCESS | IN_PROGRESS => {}
                code => return Err(self.library.words(code, communicator)),
            }
            if self.is_closed.load(Ordering::Acquire) {
                return Err("NCCL: the run is over".into());
            }
            if start.elapsed() >= limit {
                return Err(format!("NCCL: Timed out waiting {}ms", limit.as_millis()));
            }
            std::thread::sleep(pause);
            pause = longest.min(2 * pause);
            // SAFETY: the caller owns the communicator.
            code = unsafe { self.library.state(communicator) };
        }
    }

    /// Issues one call after the work before `after`, and waits for its end; aborts the communicator if it fails.
    fn run(
        &self,
        after: &Mark,
        limit: Duration,
        issue: impl FnOnce(Communicator, StreamHandle) -> Result<Code, String>,
    ) -> Result<(), Symptom> {
        let mut slot = self.communicator.lock();
        let owned = slot.take().ok_or_else(|| Symptom("NCCL: the communicator was aborted".into()))?;
        let done = self.within(|| {
            if let (Some(stream), Some(event)) = (&self.stream, after.downcast_ref::<Event>()) {
                stream.wait_for(event)?;
            }
            let stream = self.stream.as_ref().map_or(null_mut(), |stream| stream.handle());
            let code = issue(owned.communicator, stream)?;
            self.watch(owned.communicator, code, limit)
        });
        // After an error the communicator is not put back, but dropped.
        done.map(|()| *slot = Some(owned)).map_err(Symptom)
    }
}

impl DeviceEngine for Nccl {
    fn mark(&self) -> Result<Mark, Symptom> {
        match &self.stream {
            Some(stream) => stream.mark().map(|event| Arc::new(event) as Mark).map_err(Symptom),
            None => Ok(Arc::new(())),
        }
    }

    fn all_reduce(&self, own: Memory, sum: Memory, after: &Mark, limit: Duration) -> Result<(), Symptom> {
        self.run(after, limit, |communicator, stream| {
            let kind = kind(own.dtype)?;
            assert_eq!((own.length, own.dtype), (sum.length, sum.dtype), "the sum has the form of its summands");
            // SAFETY: both tensors live until this call returns, and the work is done or aborted then.
            Ok(unsafe { self.library.sum([own.pointer, sum.pointer], own.length, kind, communicator, stream) })
        })
    }

    fn exchange(
        &self,
        own: Memory,
        sent: &[Range<usize>],
        all: Memory,
        received: &[usize],
        after: &Mark,
        limit: Duration,
    ) -> Result<(), Symptom> {
        self.run(after, limit, |communicator, stream| {
            let (kind, bytes) = (kind(own.dtype)?, own.dtype.size());
            assert!(sent.iter().all(|range| range.end <= own.length) && received.iter().sum::<usize>() <= all.length);
            let sends = sent.iter().enumerate().map(|(to, range)| {
                let from = own.pointer.wrapping_byte_add(range.start * bytes).cast_const();
                Call::Send { from, count: range.len(), kind, to }
            });
            let mut start = 0;
            let receives = received.iter().enumerate().map(|(from, &count)| {
                let to = all.pointer.wrapping_byte_add(start * bytes);
                start += count;
                Call::Receive { to, count, kind, from }
            });
            let is_empty = |call: &Call| matches!(call, Call::Send { count: 0, .. } | Call::Receive { count: 0, .. });
            let calls = sends.chain(receives).filter(|call| !is_empty(call));
            // SAFETY: as above, within the bounds that were checked.
            Ok(unsafe { self.library.group(calls, communicator, stream) })
        })
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        // A call that is under way ends by that; without one the others learn of it by the abort.
        if let Some(mut idle) = self.communicator.try_lock() {
            drop(idle.take());
        }
    }
}
