//! Steps that a device replays: forward pass, backward pass and update of a batch are recorded once, and then take the
//! host one call.
//!
//! What changes from step to step is on the device: the batch is written to the place of the one that was recorded, the
//! learning rate and the number of the step to a vector. Before a step is recorded some are not, in which libraries
//! choose their kernels; a batch of another shape never is. The first replay must leave the bits of the same step
//! without: otherwise, and where something cannot be recorded, the run goes on without.

use burn::tensor::{Int, Tensor};
use kiln_ops::{Graph, primitive, tensor};
use kiln_system::{Error, Result};

use super::checksum::Checksum;
use super::outcome::Sums;
use super::{HostBackend, Plan, Task};
use crate::optim::OptimizerKind;

/// What a graph may refuse, with its words.
pub(super) type Tried<T> = std::result::Result<T, String>;

/// A batch on the device, and the number of its samples.
pub(super) type Batch<B, T> = (<T as Task<B>>::Input, usize);

pub(super) struct Recording<B: HostBackend, T: Task<B>> {
    /// `None` if it has failed.
    pub(super) graph: Option<Box<dyn Graph>>,
    /// The batch that is replayed, once there was one.
    place: Option<Batch<B, T>>,
    /// Steps of its shape.
    pub(super) steps: usize,
    /// Where a replay leaves what it has computed.
    pub(super) computed: Option<Computed<B>>,
}

/// What a step tells of its batch: sums over the samples, and the norm of the gradient.
#[derive(Clone)]
pub(super) struct Computed<B: HostBackend> {
    pub(super) sums: Vec<Sums<B>>,
    pub(super) norm: Tensor<B, 1>,
}

impl<B: HostBackend> Computed<B> {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor<B, 1>> {
        self.sums.iter().flat_map(|sums| std::iter::once(&sums.loss).chain(&sums.counted)).chain([&self.norm])
    }
}

/// Tensors that a step changes, or copies of them.
pub(super) struct State<B: HostBackend> {
    pub(super) floats: Vec<Tensor<B, 1>>,
    pub(super) integers: Vec<Tensor<B, 1, Int>>,
}

impl<B: HostBackend> State<B> {
    pub(super) fn copy(&self) -> Self {
        let own = |values: &Tensor<B, 1>| tensor(B::own(primitive(values.clone())));
        let floats = self.floats.iter().map(own).collect();
        Self { floats, integers: self.integers.iter().map(|values| values.clone() + 0).collect() }
    }

    /// Writes the values of `copy` to these tensors.
    pub(super) fn set(&self, copy: &Self) {
        for (place, values) in self.floats.iter().zip(&copy.floats) {
            B::put(primitive(values.clone()), primitive(place.clone()));
        }
        for (place, values) in self.integers.iter().zip(&copy.integers) {
            B::put_integers(values.clone().into_primitive(), place.clone().into_primitive());
        }
    }

    pub(super) fn checksum(&self, computed: &Computed<B>) -> u64 {
        let mut sum = Checksum::default();
        sum.add_tensors(self.floats.iter().chain(computed.tensors()).cloned().collect());
        sum.value()
    }
}

impl<B: HostBackend, T: Task<B>> Recording<B, T> {
    /// # Errors
    /// If there is no `graph`, or if a step of `plan` cannot be recorded; `is_ours` says that one replica has all of it,
    /// that nobody else looks at its gradients or updates its weights.
    pub(super) fn new(plan: &Plan, is_ours: bool, graph: Tried<Box<dyn Graph>>) -> Result<Self> {
        let rule = matches!(plan.optim.optimizer, OptimizerKind::Sgd | OptimizerKind::Adam | OptimizerKind::AdamW);
        let is_one = plan.probe.is_none() && plan.sampler.group(0, 0).micro_batches() == 1;
        let (refused, remedy) = ("steps cannot be recorded", "train with --cuda-graph off");
        if !(is_ours && rule && is_one && B::IN_PLACE) || plan.precision.needs_loss_scale() {
            let needed =
                "one replica, f32 or bf16, SGD, Adam or AdamW, no accumulation, no --elastic and no run.log_units";
            return Err(Error::usage(format!("{refused}: that takes the backend tch, {needed}; {remedy}")));
        }
        let graph = graph.map_err(|why| Error::usage(format!("{refused}: {why}; {remedy}")))?;
        Ok(Self { graph: Some(graph), place: None, steps: 0, computed: None })
    }

    /// The batch in its place, and whether it fits there; the first one makes the place.
    pub(super) fn placed(&mut self, task: &T, (input, samples): Batch<B, T>) -> (Batch<B, T>, bool) {
        let place = self.place.get_or_insert_with(|| (input.clone(), samples));
        if place.1 == samples && task.put(&input, &place.0) { (place.clone(), true) } else { ((input, samples), false) }
    }
}
