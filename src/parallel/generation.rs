//! Generations: who hosts which replicas, from one change of membership to the next.
//!
//! The world stays, the hosts change. Within a generation replicas train as ever; when a process or a device comes or
//! goes the generation ends, between two steps where there is time and in the middle of one where there is not. A step
//! is committed or it never happened: its collectives come before its update, so every replica stands at its last
//! whole step, and the next generation goes on from the one that got furthest. Who takes part is for [`Membership`] to
//! find out; this room only asks.

use std::fmt::Debug;
use std::sync::Arc;

use super::collective::Broken;
use super::events::Observer;
use super::plan::Plan;
use super::position::TrainingState;
use super::processes::Processes;
use crate::error::Result;

/// The generation that a process computes in, as its replicas see it.
pub trait Generation: Debug + Send + Sync {
    /// Waits until it is certain that this process still belongs to it, and fails once the generation is over. Nobody
    /// changes the state of the run before.
    fn confirm(&self) -> std::result::Result<(), Broken>;

    /// Whether it is to end after the step under way.
    fn is_ending(&self) -> bool;
}

/// The generation of a process that nobody else can end.
#[derive(Debug)]
pub struct Undisturbed;

impl Generation for Undisturbed {
    fn confirm(&self) -> std::result::Result<(), Broken> {
        Ok(())
    }

    fn is_ending(&self) -> bool {
        false
    }
}

/// Leads from one generation to the next.
pub trait Membership: Send + Sync {
    /// Takes part in the next generation; `None` when this process has left the run. `held` is where the last
    /// generation left this process, if it has been in one. The observer hears of the generation.
    fn next(&self, held: Option<Held>, observer: &mut dyn Observer) -> Result<Option<Assignment>>;

    /// The plan is done or the run was asked to stop. Waits until the process that writes it down has done so; false if
    /// it was lost before, which takes another generation.
    fn complete(&self) -> Result<bool>;
}

/// What a process keeps of a generation that is over.
#[derive(Debug)]
pub struct Held {
    /// After the last whole step. Absent if no replica was left that had all of it.
    pub state: Option<TrainingState>,
    /// Devices that failed, as numbered by `--gpu-ids`, and how.
    pub failed: Vec<(usize, String)>,
}

/// What a process is to do in a generation.
#[derive(Debug)]
pub struct Assignment {
    /// Replicas and devices are those of this generation, all else is the run's.
    pub plan: Arc<Plan>,
    /// The other processes, if there are any.
    pub processes: Option<Processes>,
    /// The generation to ask.
    pub generation: Arc<dyn Generation>,
    /// What it starts from; absent for a run that begins.
    pub state: Option<TrainingState>,
}
