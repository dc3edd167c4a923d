//! Generations: who hosts which replicas, from one change of membership to the next.
//!
//! The world stays, the hosts change. Within a generation replicas train as ever; when a process or a device comes or
//! goes the generation ends, between two steps where there is time and in the middle of one where there is not. A step
//! is committed or it never happened: its collectives come before its update, so every replica stands at its last
//! whole step, and the next generation goes on from the one that got furthest. Who takes part is for [`Membership`] to
//! find out; this room only asks.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use burn::backend::Autodiff;
use burn::module::Module;
use burn::tensor::Tensor;

use super::collective::Broken;
use super::device::HostBackend;
use super::events::{Observer, Position, TrainingState};
use super::plan::Plan;
use super::processes::Processes;
use super::replica::StartingPoint;
use crate::error::Result;
use crate::nn::{Which, flat, load_state};

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

/// A generation that begins.
#[derive(Debug, Clone)]
pub struct GenerationReport {
    /// Counts the generations of a run from 1.
    pub number: u64,
    /// Where the run stands.
    pub position: Position,
    /// Processes that take part.
    pub members: usize,
    /// The replicas of this process. The process of replica 0 writes down what the run leaves.
    pub hosted: Range<usize>,
    /// What changed, for people.
    pub why: String,
    /// From the last step of the generation before to the beginning of this one; absent for a process that comes.
    pub pause: Option<Duration>,
}

impl StartingPoint {
    /// The model and all else that training needs, out of a state on the host; `origin` says where that comes from.
    ///
    /// # Errors
    /// [`crate::error::Error::Checkpoint`] if the tensors are not those of `model`.
    pub fn restore<B, M>(model: M, state: &TrainingState, origin: &str) -> Result<(M, Self)>
    where
        B: HostBackend,
        M: Module<Autodiff<B>>,
    {
        let model = load_state(model, &state.weights, origin)?;
        let host = |tensor: Tensor<B, 1>| tensor.into_data().iter::<f32>().collect();
        let values = |average| load_state(model.clone(), average, origin).map(|model| flat(&model, Which::All));
        let average = state.average.as_ref().map(values).transpose()?;
        let average = average.map(|tensors| tensors.into_iter().map(host).collect());
        let (position, optimizer) = (state.position.clone(), Some(state.optimizer.clone()));
        Ok((model, Self { position, optimizer, average }))
    }
}
