//! Steps that a device replays: the passes of a batch are recorded once, and so is the update; then they take the host
//! one call each. What replicas exchange in between is not recorded.
//!
//! What changes from step to step is on the device: the batch is written to the place of the one that was recorded, the
//! learning rate and the number of the step to a vector, and what comes from other replicas to the place where the
//! update was recorded to read it. Before a step is recorded some are not, in which libraries choose their kernels; a
//! batch of another shape never is. The first replay must leave the bits of the same work without: otherwise, and where
//! something cannot be recorded, the run goes on without, on all replicas.

use burn::tensor::{Int, Tensor};
use kiln_ops::{Graph, primitive, tensor};
use kiln_system::{Error, Result};

use super::checksum::Checksum;
use super::outcome::{Statistics, Sums};
use super::{HostBackend, Plan, Task};
use crate::optim::OptimizerKind;

/// What a graph may refuse, with its words.
pub(super) type Tried<T> = std::result::Result<T, String>;

/// A batch on the device, and the number of its samples.
pub(super) type Batch<B, T> = (<T as Task<B>>::Input, usize);

pub(super) struct Recording<B: HostBackend, T: Task<B>> {
    /// Of the passes and of the update; `None` if one has failed.
    pub(super) graphs: Option<[Box<dyn Graph>; 2]>,
    /// The batch that is replayed, once there was one.
    place: Option<Batch<B, T>>,
    /// The samples of all replicas in its step.
    shares: Vec<usize>,
    /// Steps of its shape.
    pub(super) steps: usize,
    /// Where a replay leaves what it has computed.
    pub(super) places: Option<Places<B>>,
}

#[derive(Clone)]
pub(super) struct Places<B: HostBackend> {
    pub(super) passed: Passed<B>,
    /// What the update reads.
    pub(super) reduced: Reduced<B>,
    pub(super) norm: Norm<B>,
}

/// What the passes compute.
#[derive(Clone)]
pub(super) struct Passed<B: HostBackend> {
    pub(super) gradients: Vec<Tensor<B, 1>>,
    pub(super) sums: Vec<Sums<B>>,
    pub(super) statistics: Statistics<B>,
}

/// The same of all replicas, for the update.
#[derive(Clone)]
pub(super) struct Reduced<B: HostBackend> {
    pub(super) gradients: Vec<Tensor<B, 1>>,
    pub(super) statistics: Statistics<B>,
}

/// That of the gradient, `[1]`, which the update computes.
#[derive(Clone)]
pub(super) struct Norm<B: HostBackend>(pub(super) Tensor<B, 1>);

/// What recorded work reads or leaves: the order of its tensors is always the same.
pub(super) trait Results<B: HostBackend>: Clone {
    fn tensors(&self) -> Vec<Tensor<B, 1>>;

    /// Writes the values of `other` to the memory of these tensors.
    fn set(&self, other: &Self) {
        for (place, values) in self.tensors().into_iter().zip(other.tensors()) {
            B::put(primitive(values), primitive(place));
        }
    }
}

impl<B: HostBackend> Results<B> for Passed<B> {
    fn tensors(&self) -> Vec<Tensor<B, 1>> {
        let sums = self.sums.iter().flat_map(|sums| std::iter::once(&sums.loss).chain(&sums.counted));
        sums.chain(&self.gradients).cloned().chain(values(&self.statistics)).collect()
    }
}

impl<B: HostBackend> Results<B> for Reduced<B> {
    fn tensors(&self) -> Vec<Tensor<B, 1>> {
        self.gradients.iter().cloned().chain(values(&self.statistics)).collect()
    }
}

impl<B: HostBackend> Results<B> for Norm<B> {
    fn tensors(&self) -> Vec<Tensor<B, 1>> {
        vec![self.0.clone()]
    }
}

impl<B: HostBackend> Reduced<B> {
    /// The same in memory of its own, which no other replica reads or writes.
    pub(super) fn owned(mut self) -> Self {
        self.gradients.iter_mut().for_each(|gradient| *gradient = own(gradient));
        for layer in self.statistics.iter_mut().flatten() {
            for values in [&mut layer.mean, &mut layer.variance] {
                *values = Tensor::from_inner(own(&values.clone().inner()));
            }
        }
        self
    }
}

fn own<B: HostBackend>(values: &Tensor<B, 1>) -> Tensor<B, 1> {
    tensor(B::own(primitive(values.clone())))
}

fn values<B: HostBackend>(statistics: &Statistics<B>) -> impl Iterator<Item = Tensor<B, 1>> {
    statistics.iter().flatten().flat_map(|layer| [&layer.mean, &layer.variance]).map(|values| values.clone().inner())
}

/// Tensors that recorded work changes, or copies of them.
pub(super) struct State<B: HostBackend> {
    pub(super) floats: Vec<Tensor<B, 1>>,
    pub(super) integers: Vec<Tensor<B, 1, Int>>,
}

impl<B: HostBackend> State<B> {
    pub(super) fn copy(&self) -> Self {
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

    pub(super) fn checksum(&self, computed: &impl Results<B>) -> u64 {
        let mut sum = Checksum::default();
        sum.add_tensors(self.floats.iter().cloned().chain(computed.tensors()).collect());
        sum.value()
    }
}

impl<B: HostBackend, T: Task<B>> Recording<B, T> {
    /// # Errors
    /// If there is no `graph`, or if a step of `plan` cannot be recorded; `is_ours` says that each replica has all of
    /// it, that nobody else looks at its gradients or updates its weights, and that nothing is exchanged in its passes.
    pub(super) fn new(plan: &Plan, is_ours: bool, graph: impl Fn() -> Tried<Box<dyn Graph>>) -> Result<Self> {
        let rule = matches!(plan.optim.optimizer, OptimizerKind::Sgd | OptimizerKind::Adam | OptimizerKind::AdamW);
        let is_one = plan.probe.is_none() && plan.sampler.group(0, 0).micro_batches() == 1;
        let (refused, remedy) = ("steps cannot be recorded", "train with --cuda-graph off");
        if !(is_ours && rule && is_one && B::IN_PLACE) || plan.precision.needs_loss_scale() {
            let needed = "f32 or bf16, SGD, Adam or AdamW, one replica or --no-sync-bn, no stages, no accumulation, no \
                          --shard-optimizer, no --elastic and no run.log_units";
            return Err(Error::usage(format!("{refused}: that takes the backend tch, {needed}; {remedy}")));
        }
        let graph = || graph().map_err(|why| Error::usage(format!("{refused}: {why}; {remedy}")));
        let graphs = Some([graph()?, graph()?]);
        Ok(Self { graphs, place: None, shares: Vec::new(), steps: 0, places: None })
    }

    /// The batch in its place, and whether it fits there, as those of the other replicas do, which have these `shares`;
    /// the first one makes the place.
    pub(super) fn placed(&mut self, task: &T, batch: Batch<B, T>, shares: Vec<usize>) -> (Batch<B, T>, bool) {
        if self.place.is_none() {
            (self.place, self.shares) = (Some(batch.clone()), shares.clone());
        }
        let place = self.place.as_ref().expect("it was just made");
        if self.shares == shares && task.put(&batch.0, &place.0) { (place.clone(), true) } else { (batch, false) }
    }
}
