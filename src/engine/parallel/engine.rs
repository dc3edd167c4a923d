//! The connection between processes, as traits: an engine for collectives of values in the host's memory, another for
//! tensors where they are, a store in which engines meet, and a judge of which process is lost.
//!
//! The replicas of one process exchange messages in memory (`threads.rs`); the last one to arrive there calls the
//! engine for all of them. Operations are matched by key, so the order of calls does not matter.

use std::ops::Range;
use std::time::Duration;

use kiln_ops::Memory;
use kiln_ops::statistics::Payload;

use super::Key;

/// An error of the engine: evidence of a failure that does not name the process at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Symptom(pub String);

/// Collectives between processes. Each call ends within `limit`; after an error the engine must not be used again.
pub trait Engine: Send + Sync {
    /// This process, from 0.
    fn rank(&self) -> usize;

    /// Element-wise sum in place, in the engine's own order; the same bits on all processes.
    fn all_reduce(&self, key: Key, values: &mut [f32], limit: Duration) -> Result<(), Symptom>;

    /// Fills `all` with the bytes of all processes in the order of ranks; process `i` contributes `lengths[i]` of them.
    fn all_gather(
        &self,
        key: Key,
        own: &[u8],
        lengths: &[usize],
        all: &mut [u8],
        limit: Duration,
    ) -> Result<(), Symptom>;

    /// Sends the next `sent[i]` bytes of `own` to process `i`, and fills `all` with `received[i]` bytes from each
    /// process `i` in the order of ranks.
    fn all_to_all(
        &self,
        key: Key,
        own: &[u8],
        sent: &[usize],
        received: &[usize],
        all: &mut [u8],
        limit: Duration,
    ) -> Result<(), Symptom>;

    /// Overwrites `values` with the bytes of process `root`, which have the same length.
    fn broadcast(&self, key: Key, root: usize, values: &mut [u8], limit: Duration) -> Result<(), Symptom>;

    /// Sends bytes to process `to`. Returns before they have arrived; waits only if many others are still under way.
    fn send(&self, key: Key, to: usize, bytes: &[u8], limit: Duration) -> Result<(), Symptom>;

    /// The bytes that process `from` sends under this key.
    fn receive(&self, key: Key, from: usize, limit: Duration) -> Result<Vec<u8>, Symptom>;

    /// How long each of its connections has had data on the way to a process that was ready to take it; none if that is
    /// not known.
    fn sending(&self) -> Vec<Duration> {
        Vec::new()
    }

    /// Ends every call with an error, here and soon on the other processes.
    fn close(&self);
}

/// A point in the work queued on a device.
pub type Mark = Payload;

/// Collectives of tensors between processes, without the host. They are matched by their order, which must be the same
/// in all processes; a call that another thread makes at the same time waits. Each call ends within `limit` and returns
/// when its result is in memory; after an error the engine must not be used again.
pub trait DeviceEngine: Send + Sync {
    /// Marks the work that is queued on the default stream of this process's device now.
    ///
    /// # Errors
    /// A [`Symptom`] if the device fails.
    fn mark(&self) -> Result<Mark, Symptom>;

    /// Element-wise sum of `own` over all processes into `sum`, another tensor of this size and type, in the engine's
    /// own order; the same bits on all processes. The work before `after` has computed `own`.
    fn all_reduce(&self, own: Memory, sum: Memory, after: &Mark, limit: Duration) -> Result<(), Symptom>;

    /// Sends the elements `sent[i]` of `own` to process `i`, and receives `received[i]` elements from each process `i`,
    /// in the order of ranks, in `all`. The work before `after` has computed `own`.
    fn exchange(
        &self,
        own: Memory,
        sent: &[Range<usize>],
        all: Memory,
        received: &[usize],
        after: &Mark,
        limit: Duration,
    ) -> Result<(), Symptom>;

    /// Ends every call with an error, here and soon on the other processes.
    fn close(&self);
}

/// A key-value store that all processes see; a key is written once.
pub trait KeyStore: Send {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String>;

    /// Waits for all values, with one time limit.
    fn get(&self, keys: &[String]) -> Result<Vec<Vec<u8>>, String>;
}

/// Decides which process is lost.
pub trait Judge: Send + Sync {
    fn doing(&self, activity: &str);

    /// Reports a failure and waits, with a time limit, for the verdict, which is the same for all processes.
    fn verdict(&self, symptom: &Symptom) -> String;
}
