//! Generations: the placement of replicas on processes, from one change of membership to the next.
//!
//! The world stays the same, the processes change. When a process or a device comes or goes, the generation ends: after
//! a step if possible, within one after a loss. A step is committed by all replicas or by none: its collectives come
//! before its update, so every replica has the state of its last whole step, and the next generation continues from the
//! newest one. [`Membership`] decides which processes take part.

use std::ops::Range;
use std::sync::Arc;

use kiln_system::Result;

use super::{Broken, Observer, Plan, Processes, TrainingState};

/// The generation that a process computes in, as its replicas see it.
pub trait Generation: Send + Sync {
    /// Waits for a lease: proof that this process still belongs to the generation. Fails once that is over. No replica
    /// updates the state without it.
    fn confirm(&self) -> std::result::Result<(), Broken> {
        Ok(())
    }

    /// Whether it must end after the current step.
    fn is_ending(&self) -> bool {
        false
    }

    /// Whether another generation may follow.
    fn is_elastic(&self) -> bool {
        true
    }
}

/// The generation of an elastic run in one process, which no other process can end.
pub struct Undisturbed;

impl Generation for Undisturbed {}

/// The one generation of a run whose processes all stay to its end.
pub(super) struct Fixed;

impl Generation for Fixed {
    fn is_elastic(&self) -> bool {
        false
    }
}

pub trait Membership: Send + Sync {
    /// Takes part in the next generation; `None` when this process has left the run. `held` is what this process has
    /// from the last generation, if it was in one. Reports the generation to `observer`.
    fn next(&self, held: Option<GenerationResult>, observer: &mut dyn Observer) -> Result<Option<Assignment>>;

    /// At the end of the run, waits until the writing process has saved it; false if that was lost before, so that the
    /// run needs another generation.
    fn complete(&self) -> Result<bool>;
}

/// What a process keeps from a generation that is over.
#[derive(Debug, Default)]
pub struct GenerationResult {
    /// The state after the last whole step; `None` if no replica with all of it is left.
    pub state: Option<TrainingState>,
    /// The stages that this has, the first ones of the model or others; all of them where the model is not cut.
    pub stages: Range<usize>,
    /// Devices that failed, as numbered by `--gpu-ids`, and how.
    pub failed: Vec<(usize, String)>,
    /// The step after which replicas were found to differ, and how, if that is why there is no state.
    pub discarded: Option<(usize, String)>,
}

impl GenerationResult {
    pub(super) fn of(kept: Option<(Range<usize>, TrainingState)>) -> Self {
        let (stages, state) = kept.unzip();
        Self { state, stages: stages.unwrap_or_default(), ..Self::default() }
    }
}

/// The part of a process in a generation.
pub struct Assignment {
    /// The plan of the run, with the replicas and devices of this generation.
    pub plan: Arc<Plan>,
    pub processes: Option<Processes>,
    pub generation: Arc<dyn Generation>,
    /// The state to start from; `None` at the beginning of a run.
    pub state: Option<TrainingState>,
}
