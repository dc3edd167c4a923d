//! What connects the processes of a run, as traits: an engine that moves numbers, and a judge that knows who is lost.
//!
//! Replicas of one process meet in its memory (`local.rs`); whoever completes a meeting there speaks for all of
//! them here. Operations are matched by key, so that the order of calls does not matter.

use std::fmt::Debug;
use std::time::Duration;

use super::collective::Key;

/// What an engine noticed: evidence that something is wrong, not who is to blame for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Symptom(pub String);

/// Collectives between processes. Each call ends within `limit`; after an error the engine must not be used again.
pub trait Engine: Debug + Send + Sync {
    /// This process, from 0.
    fn rank(&self) -> usize;

    /// Processes.
    fn size(&self) -> usize;

    /// Element-wise sum in place, in the engine's own order; the same bits on all processes.
    fn all_reduce(&self, key: Key, values: &mut [f32], limit: Duration) -> Result<(), Symptom>;

    /// All processes' bytes in the order of ranks; process `i` brings `lengths[i]` of them.
    fn all_gather(&self, key: Key, own: &[u8], lengths: &[usize], limit: Duration) -> Result<Vec<u8>, Symptom>;

    /// To process `i` go the next `sent[i]` of `own` bytes; from process `i` come `received[i]`, which stand in the order
    /// of ranks.
    fn all_to_all(
        &self,
        key: Key,
        own: &[u8],
        sent: &[usize],
        received: &[usize],
        limit: Duration,
    ) -> Result<Vec<u8>, Symptom>;

    /// Overwrites the bytes by those of process `root`, of which there are as many.
    fn broadcast(&self, key: Key, root: usize, values: &mut [u8], limit: Duration) -> Result<(), Symptom>;

    /// Ends every call, here and soon at the other processes, with an error.
    fn close(&self);
}

/// Who finds out which process is lost.
pub trait Judge: Debug + Send + Sync {
    /// This process begins to do something.
    fn doing(&self, activity: &str);

    /// Reports a failure and waits, in bounded time, for the one verdict that all processes get.
    fn verdict(&self, symptom: &Symptom) -> String;
}
