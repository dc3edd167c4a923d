//! What a run tells the outside: reports of steps, validations and epochs, and states to save.

use std::time::Duration;

use super::counts::Counts;
use super::generation::GenerationReport;
use crate::error::Result;
use crate::optim::LossScale;
use crate::state::StateDict;

/// Where a run stands between two steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Position {
    /// Optimizer steps done.
    pub global_step: usize,
    /// The epoch, from 0, that the next step belongs to.
    pub epoch: usize,
    /// Steps done within that epoch.
    pub step_in_epoch: usize,
    /// Training samples seen.
    pub samples_seen: u64,
    /// Of the running epoch.
    pub running: Counts,
    /// The best validation's score and the step it was measured after.
    pub best: Option<(f64, usize)>,
    /// What f16 multiplies its loss by.
    pub loss_scale: LossScale,
}

/// One optimizer step.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// Steps done, this one included.
    pub step: usize,
    /// Epoch from 0.
    pub epoch: usize,
    /// Steps done within the epoch, this one included.
    pub step_in_epoch: usize,
    /// Over the global batch, before the update.
    pub counts: Counts,
    /// Of this step.
    pub learning_rate: f64,
    /// Of the averaged gradient, before clipping.
    pub gradient_norm: f64,
    /// From the start of this step to its end.
    pub duration: Duration,
    /// Steps left out up to and including this one because their gradient overflowed in f16; 0 after an update.
    pub skipped: usize,
    /// Samples in the order of the epoch's permutation, if asked for.
    pub samples: Vec<u32>,
}

/// One validation, at the end of an epoch or of the run.
#[derive(Debug, Clone)]
pub struct EpochReport {
    /// Epoch from 0.
    pub epoch: usize,
    /// Steps done.
    pub step: usize,
    /// Over the epoch's training steps.
    pub training: Counts,
    /// Over the validation set.
    pub validation: Counts,
    /// What the task keeps of each sample of the validation, in their order.
    pub answers: Vec<f64>,
    /// Whether no validation before was better.
    pub is_best: bool,
    /// Whether the run is complete with it.
    pub is_last: bool,
    /// Of the last step.
    pub learning_rate: f64,
}

/// A complete state of the run, on the host.
#[derive(Debug, Clone)]
pub struct TrainingState {
    /// Where it stands.
    pub position: Position,
    /// The model.
    pub weights: StateDict,
    /// What the optimizer remembers.
    pub optimizer: StateDict,
    /// The averaged model, when averaging is on.
    pub average: Option<StateDict>,
    /// Whether its validation was the best so far.
    pub is_best: bool,
    /// The score of its validation, if it was just validated.
    pub score: Option<f64>,
}

/// Receives what a run tells, in order, on the thread that started the run. An error stops the run.
pub trait Observer: Send {
    /// A step is done.
    fn step(&mut self, report: &StepReport) -> Result<()>;

    /// `done` of `total` validation batches of one replica are done.
    fn validating(&mut self, done: usize, total: usize);

    /// An epoch is done and validated.
    fn epoch(&mut self, report: &EpochReport) -> Result<()>;

    /// A state to save.
    fn checkpoint(&mut self, state: TrainingState) -> Result<()>;

    /// A generation begins.
    fn generation(&mut self, _report: &GenerationReport) -> Result<()> {
        Ok(())
    }
}
