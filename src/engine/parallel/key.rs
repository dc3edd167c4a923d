//! The name of a collective, and the reasons why one fails.

use std::fmt;

use kiln_ops::statistics::Direction;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    Statistics {
        /// The layer's number in forward order.
        layer: usize,
        /// Moments or gradient sums.
        direction: Direction,
    },
    ForwardDone,
    BackwardDone,
    /// Losses, hits and requests to stop.
    Counts,
    /// The sum of gradients: of a bucket, from 1, or of the parameters in no bucket, 0.
    Gradients {
        bucket: usize,
    },
    Weights,
    /// The mean of batch-norm's statistics over replicas that do not synchronise them.
    RunningStatistics,
    /// Whether all have recorded a part of the step.
    Recording,
    EvaluationModel,
    Validation,
    /// The state that a resumed run starts from.
    StartingPoint,
    Comparison,
    /// All know how they compare.
    Leaving,
    /// What a stage computes of a micro-batch, for the next one.
    Activations {
        to: usize,
    },
    Gradient {
        to: usize,
    },
    /// A worker's part of the state to save.
    State {
        /// The sender; the receiver, once it has all.
        worker: usize,
    },
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
            Self::Weights => f.write_str("exchange of updated weights"),
            Self::RunningStatistics => f.write_str("mean of the running statistics"),
            Self::Recording => f.write_str("agreement on recorded steps"),
            Self::EvaluationModel => f.write_str("broadcast of the model to validate"),
            Self::Validation => f.write_str("exchange of validation results"),
            Self::StartingPoint => f.write_str("broadcast of the checkpoint"),
            Self::Comparison => f.write_str("comparison of the replicas"),
            Self::Leaving => f.write_str("end of the run"),
            Self::Activations { to } => write!(f, "activations for worker {to}"),
            Self::Gradient { to } => write!(f, "gradient for worker {to}"),
            Self::State { .. } => f.write_str("gathering of the state"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Global step, from 0.
    pub step: usize,
    pub micro_batch: usize,
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
