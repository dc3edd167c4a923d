//! What replicas do together, as a trait: one implementation per engine, one test suite for all of them.
//!
//! A collective is matched by its [`Key`], never by the order of calls: the autodiff graph decides when a layer's
//! backward runs, and nothing else may depend on it. Every call returns in bounded time. When a replica is lost, all
//! calls that wait for it, and all later ones, of all replicas, return the same verdict; a call whose replicas had all
//! come before returns its result.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use burn::tensor::bf16;

use crate::ops::statistics::Direction;

/// What a collective is for.
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
    /// The sum of gradients: of a bucket, from 1, beside the backward pass; of all that is in none of them, 0.
    Gradients {
        /// Which of them.
        bucket: usize,
    },
    /// The model to validate.
    EvaluationModel,
    /// Losses and hits of a validation.
    Validation,
    /// What a resumed run goes on from.
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
    /// What it is for.
    pub operation: Operation,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of step {}", self.operation, self.step + 1)
    }
}

/// Why a group can do nothing together any more; the same on all replicas of a process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// By one of its own replicas.
    #[error("{0}")]
    Replica(String),
    /// By another process.
    #[error("{0}")]
    Peer(String),
}

impl Broken {
    /// Leaves a frame that cannot return an error, such as a backward pass; the replica catches it.
    pub fn unwind(self) -> ! {
        std::panic::resume_unwind(Box::new(self))
    }
}

/// What a replica of a process hands to the others: anything, as they know what it is.
pub type Part = Arc<dyn Any + Send + Sync>;

/// What becomes of the values of all replicas: `|all| all` leaves them as they are.
pub type Combine = fn(Vec<Vec<f64>>) -> Vec<Vec<f64>>;

/// One replica's handle on its group.
pub trait Collective: fmt::Debug + Send + Sync {
    /// This replica, from 0.
    fn rank(&self) -> usize;

    /// Replicas in the group.
    fn size(&self) -> usize;

    /// What `combine` makes of the parts of all replicas, in rank order, where all are in this process; the same for all.
    fn meet(&self, key: Key, part: Part, combine: &dyn Fn(Vec<Part>) -> Part) -> Result<Part, Broken>;

    /// Element-wise sum over replicas, taken in a fixed binary tree over their ranks: `(0+1)+(2+3)`.
    fn all_reduce(&self, key: Key, values: Vec<f32>) -> Result<Arc<Vec<f32>>, Broken>;

    /// As [`Collective::all_reduce`], with half the traffic: each replica's share is rounded to bf16, sums are f32.
    fn all_reduce_bf16(&self, key: Key, values: Vec<bf16>) -> Result<Arc<Vec<f32>>, Broken>;

    /// An empty vector for the next all-reduce, with the memory of an earlier one where there is some: the gradients of
    /// a large model are much to ask from the system, and to clear, in every step.
    fn buffer(&self) -> Vec<f32> {
        Vec::new()
    }

    /// Takes back a result that is not needed any more.
    fn recycle(&self, _result: Arc<Vec<f32>>) {}

    /// What `combine` makes, once in each process, of all replicas' values in rank order; all bring equally many.
    fn all_gather(&self, key: Key, values: Vec<f64>, combine: Combine) -> Result<Arc<Vec<Vec<f64>>>, Broken>;

    /// The values of replica `root`; the others pass `None`.
    fn broadcast(&self, key: Key, root: usize, values: Option<Vec<f32>>) -> Result<Arc<Vec<f32>>, Broken>;

    /// Returns when all replicas of this process have come.
    fn barrier(&self, key: Key) -> Result<(), Broken>;

    /// Breaks the group: this replica will not come any more, or none of another process. The first reason is kept.
    fn abort(&self, reason: Broken);

    /// Whether messages travel to other processes, so that it pays to send them early.
    fn is_distributed(&self) -> bool {
        false
    }

    /// Whether this is the first replica of its process, which speaks for all of them.
    fn is_local_leader(&self) -> bool;
}
