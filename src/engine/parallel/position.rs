//! The position of a run between two steps, as integers, and its complete state, as tensors on the host.

use burn::backend::Autodiff;
use burn::module::Module;
use kiln_ops::download_each;
use kiln_system::Result;

use super::{Counts, HostBackend};
use crate::nn::{TensorSet, flat, load_state};
use crate::optim::{LossScale, Plateau};
use crate::state::StateDict;

/// The position of a run between two steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Position {
    pub global_step: usize,
    /// The epoch, from 0, that the next step belongs to.
    pub epoch: usize,
    pub step_in_epoch: usize,
    pub samples_seen: u64,
    /// The sums of the current epoch.
    pub running: Counts,
    /// The score of the best validation, and its step.
    pub best: Option<(f64, usize)>,
    /// The loss scale of f16.
    pub loss_scale: LossScale,
    /// What the plateau schedule remembers of validations.
    pub plateau: Plateau,
}

/// A complete state of the run, on the host.
#[derive(Debug, Clone, Default)]
pub struct TrainingState {
    pub position: Position,
    pub weights: StateDict,
    pub optimizer: StateDict,
    pub average: Option<StateDict>,
    pub is_best: bool,
    /// The score of its validation, if it was just validated.
    pub score: Option<f64>,
}

impl TrainingState {
    /// Adds the tensors of another part of the model.
    pub fn join(&mut self, other: Self) {
        self.weights.extend(other.weights);
        self.optimizer.extend(other.optimizer);
        if let Some(average) = other.average {
            self.average.get_or_insert_default().extend(average);
        }
    }
}

/// The state a run starts from, apart from the model.
#[derive(Debug, Clone, Default)]
pub struct StartingPoint {
    pub position: Position,
    pub optimizer: Option<StateDict>,
    /// The averaged model's values, when resuming with averaging.
    pub average: Option<Vec<Vec<f32>>>,
}

impl StartingPoint {
    /// Restores a state from the host; returns the model and the rest. `origin` names the source in errors.
    ///
    /// # Errors
    /// [`kiln_system::Error::Checkpoint`] if the tensors are not those of `model`.
    pub fn restore<B, M>(model: M, state: &TrainingState, origin: &str) -> Result<(M, Self)>
    where
        B: HostBackend,
        M: Module<Autodiff<B>>,
    {
        let model = load_state(model, &state.weights, origin)?;
        let values = |average| load_state(model.clone(), average, origin).map(|model| flat(&model, TensorSet::All));
        let average = state.average.as_ref().map(values).transpose()?.map(download_each);
        let (position, optimizer) = (state.position.clone(), Some(state.optimizer.clone()));
        Ok((model, Self { position, optimizer, average }))
    }
}
