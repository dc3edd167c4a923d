//! The status of an elastic run: what its members report, and what `train members` prints.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The version of the training state that a member holds; a newer state has a greater version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StateVersion {
    /// The generation of its last committed step; 0 if it holds nothing.
    pub generation: u64,
    /// The number of its last committed step.
    pub step: u64,
}

/// How far a member is, for people.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Such as `step 12, gradient all-reduce`.
    pub activity: String,
    pub step: u64,
    /// Its throughput, over all replicas of the run.
    pub images_per_second: f64,
    /// Seconds that others waited for its replicas: in the last minute, and since the generation began.
    pub waited: [f64; 2],
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    pub id: u64,
    pub host: String,
    pub process: u32,
    /// How many devices it has; if it has replicas, how many it uses.
    pub devices: usize,
    /// Its replicas in the current or last generation; empty if it has none.
    pub replicas: Range<usize>,
    pub draining: bool,
    pub progress: Progress,
}

impl MemberStatus {
    pub fn has_part(&self) -> bool {
        !self.replicas.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct RunStatus {
    /// Counts generations from 1; 0 before the first.
    pub generation: u64,
    /// The state of the generation, as in `running`.
    pub phase: &'static str,
    pub why: String,
    /// The members with replicas in rank order, then the others in order of arrival.
    pub members: Vec<MemberStatus>,
}

/// What a process of an elastic run does next.
#[derive(Debug)]
pub enum Next<M> {
    /// It takes part in a generation.
    Begin(M),
    Left,
    /// Nothing: the others have completed the run.
    Complete,
}
