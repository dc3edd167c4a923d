//! The interface between the engine and what it trains.
//!
//! A task defines the batch, the loss of a sample, and what is counted. The engine does the rest: the order and the
//! shards of samples, forward and backward, the mean over samples, loss scale, accumulation, reduction, clipping,
//! update, running statistics, averages, validation, checkpoints, and the loss of processes. So no task can lose a
//! gradient or weigh a sample twice.

use std::fmt::{Display, Formatter};
use std::ops::Range;

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, ModuleDisplay};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_dataset::Dataset;
use kiln_ops::{Precision, primitive, tensor};
use kiln_system::{Error, Result};
use rayon::prelude::*;

use super::{Counts, HostBackend, Shard};
use crate::nn::ForwardContext;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    Training,
    Validation,
}

/// What is kept as long as some samples are expected; see [`Task::foresee`].
pub type Foresight = Box<dyn Send>;

/// The model of a task without its gradients.
pub type Evaluated<B, T> = <<T as Task<B>>::Model as AutodiffModule<Autodiff<B>>>::InnerModule;

/// The loss of every sample, `[samples]`, and other outputs of a forward pass.
pub type Losses<B, Outputs = ()> = (Tensor<B, 1>, Outputs);

/// What one stage of a model computes for the next: a tensor of any shape, in f32.
#[derive(Debug, Clone)]
pub struct Activations<B: Backend>(pub(super) FloatTensor<B>);

impl<B: Backend> Activations<B> {
    /// Those in `x`.
    pub fn new<const D: usize>(x: Tensor<B, D>) -> Self {
        Self(primitive(x))
    }

    /// The tensor given to [`Activations::new`].
    pub fn into_tensor<const D: usize>(self) -> Tensor<B, D> {
        tensor(self.0)
    }
}

/// The output of some units.
#[derive(Debug)]
pub enum Passed<B: Backend, Outputs = ()> {
    /// For the units after it.
    Activations(Activations<B>),
    /// Of the last unit.
    Losses(Losses<B, Outputs>),
}

/// A part of a model that no stage divides.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    /// The names of its modules or tensors in the model; the empty name is that of the model.
    modules: Vec<String>,
    /// The cost of a pass relative to that of the other units.
    pub(super) cost: f64,
}

impl Unit {
    /// A unit of these modules.
    pub fn new<N: Into<String>>(modules: impl IntoIterator<Item = N>, cost: f64) -> Self {
        Self { modules: modules.into_iter().map(Into::into).collect(), cost }
    }

    fn has(&self, tensor: &str) -> bool {
        let is_in = |module: &String| {
            tensor
                .strip_prefix(module.as_str())
                .is_some_and(|rest| module.is_empty() || rest.is_empty() || rest.starts_with('.'))
        };
        self.modules.iter().any(is_in)
    }
}

impl Display for Unit {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let name = self.modules.join(" and ");
        f.write_str(if name.is_empty() { "the model" } else { &name })
    }
}

/// The unit among `units` that a tensor belongs to. A suffix of its name after a dot does not matter.
pub fn unit_of(units: &[Unit], tensor: &str) -> Option<usize> {
    units.iter().position(|unit| unit.has(tensor))
}

/// What to compute in a forward pass: of a model of one unit, all.
#[derive(Debug)]
pub struct Passage<'a, B: Backend, Input> {
    pub units: Range<usize>,
    /// The batch. Only the first and the last unit need it.
    pub input: Input,
    /// What the unit before has computed, unless the first unit is among these.
    pub activations: Option<Activations<B>>,
    /// How layers treat batch statistics, and in which precision they compute.
    pub context: &'a ForwardContext<B>,
}

impl<'a, B: Backend, Input> Passage<'a, B, Input> {
    /// The same with another form of the batch.
    pub fn map<Other>(self, form: impl FnOnce(Input) -> Other) -> Passage<'a, B, Other> {
        let Self { units, input, activations, context } = self;
        Passage { units, input: form(input), activations, context }
    }
}

/// Something to train on backend `B`. One value serves all replicas, from their threads.
pub trait Task<B: HostBackend>: Send + Sync + 'static {
    /// The model. Layers of [`crate::nn`] synchronise batch-norm, mix precision and overlap the all-reduce.
    type Model: AutodiffModule<Autodiff<B>, InnerModule: ModuleDisplay> + ModuleDisplay + 'static;
    /// A sample as it is read.
    type Item: Send + 'static;
    /// Some samples in host memory.
    type Batch: Send + 'static;
    /// Some samples on a device.
    type Input: Clone + Send + 'static;
    /// The outputs of the last unit for [`Task::count`] and [`Task::answers`].
    type Outputs: Send + 'static;

    /// How many numbers [`Task::answers`] has for each sample.
    const ANSWERS: usize = 0;

    /// The samples of `split`: any dataset of `burn_dataset` whose items depend only on their index. One that draws
    /// them, such as `SamplerDataset`, would give other numbers in every run.
    fn dataset(&self, split: Split) -> &dyn Dataset<Self::Item>;

    /// Reads samples by their ids, in parallel. A task may override it to read whole batches.
    ///
    /// # Errors
    /// If there is no such sample.
    fn fetch(&self, split: Split, ids: &[u32]) -> Result<Vec<Self::Item>> {
        fetch(self.dataset(split), ids)
    }

    /// Announces which samples of `split` will be fetched and prepared, in order, for as long as the answer is kept.
    /// Samples that are slow to read can be read before.
    fn foresee(&self, _split: Split, _shards: Box<dyn Iterator<Item = Shard> + Send>) -> Option<Foresight> {
        None
    }

    /// Prepares a batch of `items`, the samples of `shard`. Called ahead of the step, on the loader's thread.
    ///
    /// Random numbers must depend only on the experiment's seed, the epoch and the sample.
    ///
    /// # Errors
    /// If a sample is damaged, which ends the run.
    fn prepare(&self, split: Split, items: Vec<Self::Item>, shard: &Shard) -> Result<Self::Batch>;

    /// Puts a batch on a device.
    fn upload(&self, batch: Self::Batch, device: &B::Device) -> Self::Input;

    /// Writes a batch to the place of another one, for a step that is replayed there; false, and nothing is written, if
    /// that has another shape, or if the step needs numbers of the batch that are not on the device.
    fn put(&self, _batch: &Self::Input, _place: &Self::Input) -> bool {
        false
    }

    /// The units of the model in the order of the forward pass. A stage computes one or several of them; a model of one
    /// unit cannot be trained in stages. With [`Plan::grad_checkpointing`](super::Plan) a unit is computed twice: a
    /// layer must not draw other numbers the second time, as Burn's dropout does, or change itself, as Burn's
    /// batch-norm does.
    fn units(&self) -> Vec<Unit> {
        vec![Unit::new([""], 1.0)]
    }

    /// The forward pass through the units of `passage`: the losses, or the input of the units after it.
    fn forward(
        &self,
        model: &Self::Model,
        passage: Passage<Autodiff<B>, Self::Input>,
    ) -> Passed<Autodiff<B>, Self::Outputs>;

    /// The forward pass of an evaluation.
    fn evaluate(&self, model: &Evaluated<B, Self>, passage: Passage<B, Self::Input>) -> Passed<B, Self::Outputs>
    where
        Self: Sized;

    /// What to count over samples, such as correct classifications, in addition to the loss:
    /// [`COUNTED`](super::COUNTED) sums, which stay on the device, since reading them would make it wait. Called after
    /// the backward pass.
    fn count(&self, _outputs: &Self::Outputs) -> Option<Tensor<B, 1>> {
        None
    }

    /// What a validation keeps of each sample, `[samples, ANSWERS]`. It stays on the device until the validation ends.
    fn answers(&self, _outputs: &Self::Outputs) -> Option<Tensor<B, 2>> {
        None
    }

    /// The score of a validation; the model with the greatest score is the best. By default the negative mean loss.
    fn score(&self, counts: &Counts) -> f64 {
        -counts.mean_loss()
    }

    /// Whether the parameter `name` belongs to the head, which may have its own learning rate.
    fn is_head(&self, _name: &str) -> bool {
        false
    }

    /// A type that holds every number of [`Passed::Activations`] in a run in `precision`. Units that are computed again
    /// keep what they begin with in it.
    fn passes_on(&self, _precision: Precision) -> Precision {
        Precision::F32
    }

    /// Whether [`Task::after_backward`] looks at gradients. Then those of each micro-batch stay apart to the end of its
    /// backward pass, which takes the memory of one more set of them where a step has several.
    fn sees_gradients(&self) -> bool {
        false
    }

    /// Called with this replica's gradients of one micro-batch, before accumulation and reduction, if
    /// [`Task::sees_gradients`]; else those of convolution kernels may have the ones of earlier micro-batches in them.
    fn after_backward(&self, _model: &Self::Model, _outputs: &Self::Outputs, _gradients: &GradientsParams) {}
}

/// Samples of `dataset`, in parallel.
///
/// # Errors
/// [`Error::Data`] if there is no such sample.
pub fn fetch<I: Send>(dataset: &dyn Dataset<I>, ids: &[u32]) -> Result<Vec<I>> {
    /// Samples that a thread reads together.
    const FEW: usize = 8;
    let read = |id: &u32| {
        let missing = || Error::Data(format!("there is no sample {id} among the {} of the data set", dataset.len()));
        dataset.get(*id as usize).ok_or_else(missing)
    };
    ids.par_iter().with_min_len(FEW).map(read).collect()
}
