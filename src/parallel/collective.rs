//! Collectives between replicas, as a trait: one implementation per engine, one test suite for all of them.
//!
//! A collective is matched by its [`Key`], never by the order of calls, which depends on the autodiff graph. Every call
//! has a time limit. When a replica is lost, all calls that wait for it, and all later ones, return the same verdict on
//! all replicas; a call whose replicas had all arrived returns its result.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use burn::tensor::bf16;

use crate::ops::statistics::Direction;

/// The purpose of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Statistics of one batch-norm layer.
    Statistics {
        /// The layer's number in forward order.
        layer: usize,
        /// Moments or gradient sums.
        direction: Direction,
    },
    /// All replicas have finished forward.
    ForwardDone,
    /// All replicas have finished backward.
    BackwardDone,
    /// Losses, hits and requests to stop.
    Counts,
    /// The sum of gradients: of a bucket, from 1, or of the parameters in no bucket, 0.
    Gradients {
        /// The number of the bucket.
        bucket: usize,
    },
    /// The model to validate.
    EvaluationModel,
    /// Losses and hits of a validation.
    Validation,
    /// The state that a resumed run starts from.
    StartingPoint,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Statistics { layer, direction } => {
                let direction = if *direction == Direction::Forward { "forward" } else { "backward" };
                write!(f, "{direction} statistics of batch-norm layer {layer}")
            }
            Self::ForwardDone => f.write_str("end of forward"),
            Self::BackwardDone => f.write_str("end of backward"),
            Self::Counts => f.write_str("exchange of losses"),
            Self::Gradients { .. } => f.write_str("gradient all-reduce"),
            Self::EvaluationModel => f.write_str("broadcast of the model to validate"),
            Self::Validation => f.write_str("exchange of validation results"),
            Self::StartingPoint => f.write_str("broadcast of the checkpoint"),
        }
    }
}

/// Names one collective of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Global step, from 0.
    pub step: usize,
    /// Micro-batch within the step.
    pub micro_batch: usize,
    /// Its purpose.
    pub operation: Operation,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of step {}", self.operation, self.step + 1)
    }
}

/// Why a group is broken; the same on all replicas of a process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A replica of this process failed.
    #[error("{0}")]
    Replica(String),
    /// Another process failed.
    #[error("{0}")]
    Peer(String),
}

impl Broken {
    /// Unwinds from code that cannot return an error, such as a backward pass; the replica catches it.
    pub fn unwind(self) -> ! {
        std::panic::resume_unwind(Box::new(self))
    }
}

/// A message between the replicas of a process, of any type.
pub type Part = Arc<dyn Any + Send + Sync>;

/// Combines the values of all replicas; `|all| all` keeps them.
pub type Combine = fn(Vec<Vec<f64>>) -> Vec<Vec<f64>>;

/// One replica's handle on its group.
pub trait Collective: fmt::Debug + Send + Sync {
    /// This replica, from 0.
    fn rank(&self) -> usize;

    /// Replicas in the group.
    fn size(&self) -> usize;

    /// Combines the parts of all replicas of this process, in rank order; all get the same result.
    fn meet(&self, key: Key, part: Part, combine: &dyn Fn(Vec<Part>) -> Part) -> Result<Part, Broken>;

    /// Element-wise sum over replicas, taken in a fixed binary tree over their ranks: `(0+1)+(2+3)`.
    fn all_reduce(&self, key: Key, values: Vec<f32>) -> Result<Arc<Vec<f32>>, Broken>;

    /// As [`Collective::all_reduce`], with half the traffic: each replica's share is rounded to bf16, sums are f32.
    fn all_reduce_bf16(&self, key: Key, values: Vec<bf16>) -> Result<Arc<Vec<f32>>, Broken>;

    /// An empty vector for the next all-reduce, with the memory of an earlier one if there is one: allocating and
    /// clearing the gradients of a large model in every step is slow.
    fn buffer(&self) -> Vec<f32> {
        Vec::new()
    }

    /// Takes back a result that is not needed any more.
    fn recycle(&self, _result: Arc<Vec<f32>>) {}

    /// The values of all replicas in rank order, equally many of each, as `combine` returns them; each process calls it
    /// once.
    fn all_gather(&self, key: Key, values: Vec<f64>, combine: Combine) -> Result<Arc<Vec<Vec<f64>>>, Broken>;

    /// The values of replica `root`; the others pass `None`.
    fn broadcast(&self, key: Key, root: usize, values: Option<Vec<f32>>) -> Result<Arc<Vec<f32>>, Broken>;

    /// Returns when all replicas of this process have arrived.
    fn barrier(&self, key: Key) -> Result<(), Broken>;

    /// Breaks the group, because this replica or another process failed. The first reason is kept.
    fn abort(&self, reason: Broken);

    /// Whether there are other processes, so that gradients should be sent early.
    fn is_distributed(&self) -> bool {
        false
    }

    /// Whether this is the first replica of its process, which reports for all of them.
    fn is_local_leader(&self) -> bool;
}
