//! The reference batches in another precision, for comparison with f32.

use kiln_engine::parallel::HostBackend;
use kiln_engine::state::StateDict;
use kiln_ops::Precision;
use kiln_training::Stem;

use super::fixture::{Reference, integers, name_of};
use super::run::Setup;
use super::{Variant, named_gradients, setup, train};

/// The gradients, the loss, and the loss after every step of the trajectory, of the reference batches in `precision`.
pub struct InPrecision {
    pub gradients: StateDict,
    pub loss: f64,
    pub losses: Vec<f64>,
}

/// Trains on the reference batches in `precision`, with two replicas.
pub fn in_precision<B: HostBackend>(stem: Stem, precision: Precision) -> InPrecision {
    let reference = Reference::load();
    let variant = Variant::Sync(2);
    let train = |learning_rate, rows: &[Vec<usize>]| {
        let setup = Setup { precision, ..setup(&reference, variant, learning_rate) };
        train::<B>(&reference, stem, variant, &setup, rows, 0)
    };
    let expected = reference.tensors(&format!("{}.grads", name_of(stem)));
    let rows = integers(&expected["@batch_indices"]).iter().map(|row| *row as usize).collect();
    let first = train(Some(0.0), &[rows]);
    let state = first.states.last().unwrap();
    InPrecision {
        gradients: named_gradients(&state.optimizer, &state.weights),
        loss: first.steps[0].counts.mean_loss(),
        losses: train(None, &reference.batches()).steps.iter().map(|step| step.counts.mean_loss()).collect(),
    }
}
