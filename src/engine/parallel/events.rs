//! The events of a run for its observer: reports of steps, validations and epochs, and states to save.

use std::ops::Range;
use std::time::Duration;

use kiln_ops::Traffic;
use kiln_system::Result;

use super::writer::Write;
use super::{Counts, Position, TrainingState, Work};

#[derive(Debug, Clone, Default)]
pub struct StepReport {
    pub step: usize,
    /// Epoch from 0.
    pub epoch: usize,
    /// Steps done within the epoch, this one included.
    pub step_in_epoch: usize,
    /// Over the global batch, before the update.
    pub counts: Counts,
    pub learning_rate: f64,
    /// The norm of the mean gradient, before clipping.
    pub gradient_norm: f64,
    pub duration: Duration,
    /// What each worker did in the step before, or in an earlier one if not every step is measured; empty if there is
    /// one worker, or nothing new.
    pub work: Vec<Work>,
    /// The copies of this process between its begin and its end, if the devices are not the processor.
    pub traffic: Option<Traffic>,
    /// Steps in a row, up to this one, that were skipped because their gradient overflowed in f16; 0 after an update.
    pub skipped: usize,
    /// Samples in the order of the epoch's permutation, if asked for.
    pub samples: Vec<u32>,
}

/// One validation, at the end of an epoch or of the run.
#[derive(Debug, Clone)]
pub struct EpochReport {
    /// Epoch from 0.
    pub epoch: usize,
    pub step: usize,
    /// Over the epoch's training steps.
    pub training: Counts,
    pub validation: Counts,
    /// The task's answers for each sample of the validation, in their order.
    pub answers: Vec<f64>,
    /// Whether it is better than all validations before.
    pub is_best: bool,
    pub is_last: bool,
    pub learning_rate: f64,
}

#[derive(Debug, Clone)]
pub struct GenerationReport {
    /// Counts the generations of a run from 1.
    pub number: u64,
    pub position: Position,
    /// Processes that take part.
    pub members: usize,
    /// The replicas of this process. The process of replica 0 writes the run's files.
    pub hosted: Range<usize>,
    /// The causes of the change, for people.
    pub why: String,
    /// From the last step of the generation before to the beginning of this one; `None` for a process that has joined.
    pub pause: Option<Duration>,
}

/// Receives the events of a run, in order, on the thread that started the run. An error stops the run.
pub trait Observer: Send {
    fn step(&mut self, report: &StepReport) -> Result<()>;

    /// `done` of `total` validation batches of one replica are done.
    fn validating(&mut self, _done: usize, _total: usize) {}

    fn epoch(&mut self, _report: &EpochReport) -> Result<()> {
        Ok(())
    }

    /// A state to save. What this returns is done by another thread, during training, and never twice at a time; an
    /// error of it stops the run, too, and the run ends after it.
    fn checkpoint(&mut self, state: TrainingState) -> Result<Write>;

    /// The training waits at `step`, where a state is to be saved, for the one before to be written.
    fn waiting(&mut self, _step: usize) {}

    fn generation(&mut self, _report: &GenerationReport) -> Result<()> {
        Ok(())
    }
}
