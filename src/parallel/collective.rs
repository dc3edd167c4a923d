//! Collectives between replicas: in memory within a process (`local.rs`), over an engine between processes.
//!
//! A collective is matched by its [`Key`], never by the order of calls, which depends on the autodiff graph. Every call
//! has a time limit. When a replica is lost, all calls that wait for it, and all later ones, return the same verdict on
//! all replicas; a call whose replicas had all arrived returns its result.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use burn::tensor::bf16;

use super::combine::Message;
use super::local::Group;
use super::processes::Processes;
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
#[derive(Debug)]
pub struct Collective {
    /// Among the replicas of this process.
    pub(super) place: usize,
    pub(super) group: Arc<Group>,
}

impl Collective {
    /// This replica, from 0.
    pub fn rank(&self) -> usize {
        self.group.first() + self.place
    }

    /// Replicas in the group.
    pub fn size(&self) -> usize {
        self.group.processes.as_ref().map_or(self.group.size, Processes::replicas)
    }

    /// Combines the parts of all replicas of this process, in rank order; all get the same result.
    pub fn meet(&self, key: Key, part: Part, combine: &dyn Fn(Vec<Part>) -> Part) -> Result<Part, Broken> {
        let all = |parts: Vec<Message>| Ok(Message::Part(combine(parts.into_iter().map(Message::into_part).collect())));
        self.group.meet(self.place, key, Message::Part(part), all).map(Message::into_part)
    }

    /// Element-wise sum over replicas, taken in a fixed binary tree over their ranks: `(0+1)+(2+3)`.
    pub fn all_reduce(&self, key: Key, values: Vec<f32>) -> Result<Arc<Vec<f32>>, Broken> {
        let sum = |shares| self.group.sum(key, shares, false);
        self.group.meet(self.place, key, Message::Floats(Arc::new(values)), sum).map(Message::into_floats)
    }

    /// As [`Collective::all_reduce`], with half the traffic: each replica's share is rounded to bf16, sums are f32.
    pub fn all_reduce_bf16(&self, key: Key, values: Vec<bf16>) -> Result<Arc<Vec<f32>>, Broken> {
        let sum = |shares| self.group.sum(key, shares, true);
        self.group.meet(self.place, key, Message::Halves(values), sum).map(Message::into_floats)
    }

    /// An empty vector for the next all-reduce, with the memory of an earlier one if there is one: allocating and
    /// clearing the gradients of a large model in every step is slow.
    pub fn buffer(&self) -> Vec<f32> {
        self.group.spare()
    }

    /// Takes back a result that is not needed any more.
    pub fn recycle(&self, result: Arc<Vec<f32>>) {
        // Only the last replica owns the vector.
        if let Some(values) = Arc::into_inner(result) {
            self.group.keep(values);
        }
    }

    /// The values of all replicas in rank order, equally many of each, as `combine` returns them; each process calls it
    /// once.
    pub fn all_gather(&self, key: Key, values: Vec<f64>, combine: Combine) -> Result<Arc<Vec<Vec<f64>>>, Broken> {
        let gather = |messages| Ok(Message::Gathered(Arc::new(combine(self.group.gather(key, messages)?))));
        match self.group.meet(self.place, key, Message::Values(values), gather)? {
            Message::Gathered(all) => Ok(all),
            _ => Ok(Arc::default()),
        }
    }

    /// The values of replica `root`; the others pass `None`.
    pub fn broadcast(&self, key: Key, root: usize, values: Option<Vec<f32>>) -> Result<Arc<Vec<f32>>, Broken> {
        let message = values.map_or(Message::Nothing, |values| Message::Floats(Arc::new(values)));
        let broadcast = |messages| self.group.broadcast(key, root, messages);
        self.group.meet(self.place, key, message, broadcast).map(Message::into_floats)
    }

    /// Returns when all replicas of this process have arrived.
    pub fn barrier(&self, key: Key) -> Result<(), Broken> {
        self.group.meet(self.place, key, Message::Nothing, |_| Ok(Message::Nothing)).map(|_| ())
    }

    /// Breaks the group, because this replica or another process failed. The first reason is kept.
    pub fn abort(&self, reason: Broken) {
        let mut table = self.group.lock();
        self.group.fail(&mut table, reason);
        drop(table);
        // This process will not take part in the collectives that other processes wait for.
        self.group.processes.iter().for_each(Processes::close);
    }

    /// Whether there are other processes, so that gradients should be sent early.
    pub fn is_distributed(&self) -> bool {
        self.group.processes.is_some()
    }

    /// Whether this is the first replica of its process, which reports for all of them.
    pub fn is_local_leader(&self) -> bool {
        self.place == 0
    }
}
