//! The short form of a [`Task`], for a model in one piece: samples, a batch on a device, the loss of each sample.

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module, ModuleDisplay};
use burn::tensor::Tensor;
use burn_dataset::Dataset;
use kiln_ops::TrainBackend;
use kiln_system::Result;

use super::{Evaluated, HostBackend, Passage, Passed, Shard, Split, Task};
use crate::nn::ForwardContext;

/// What a model learns. Whoever wants stages, counts, or batches that are prepared ahead of the step implements
/// [`Task`].
pub trait Objective: Send + Sync + 'static {
    /// A sample as it is read.
    type Sample: Clone + Send + 'static;
    /// The model. Layers of [`crate::nn`] synchronise batch-norm, mix precision and overlap the all-reduce; all others
    /// may be Burn's.
    type Model<B: TrainBackend>: Module<B>;
    /// Some samples on a device.
    type Batch<B: TrainBackend>;

    /// The samples of `split`, as in [`Task::dataset`].
    fn dataset(&self, split: Split) -> &dyn Dataset<Self::Sample>;

    fn batch<B: TrainBackend>(&self, samples: Vec<Self::Sample>, device: &B::Device) -> Self::Batch<B>;

    /// The loss of each sample, `[samples]`. The engine takes the mean over those of all replicas.
    fn losses<B: TrainBackend>(
        &self,
        model: &Self::Model<B>,
        batch: Self::Batch<B>,
        context: &ForwardContext<B>,
    ) -> Tensor<B, 1>;
}

impl<B, O> Task<B> for O
where
    B: HostBackend,
    O: Objective,
    O::Model<Autodiff<B>>: AutodiffModule<Autodiff<B>, InnerModule = O::Model<B>> + ModuleDisplay + 'static,
    O::Model<B>: ModuleDisplay,
{
    type Model = O::Model<Autodiff<B>>;
    type Item = O::Sample;
    type Batch = Vec<O::Sample>;
    type Input = (Vec<O::Sample>, B::Device);
    type Outputs = ();

    fn dataset(&self, split: Split) -> &dyn Dataset<O::Sample> {
        Objective::dataset(self, split)
    }

    fn prepare(&self, _: Split, samples: Vec<O::Sample>, _: &Shard) -> Result<Vec<O::Sample>> {
        Ok(samples)
    }

    fn upload(&self, samples: Vec<O::Sample>, device: &B::Device) -> Self::Input {
        (samples, device.clone())
    }

    fn forward(&self, model: &Self::Model, passage: Passage<Autodiff<B>, Self::Input>) -> Passed<Autodiff<B>> {
        let (samples, device) = passage.input;
        Passed::Losses((self.losses(model, self.batch::<Autodiff<B>>(samples, &device), passage.context), ()))
    }

    fn evaluate(&self, model: &Evaluated<B, Self>, passage: Passage<B, Self::Input>) -> Passed<B> {
        let (samples, device) = passage.input;
        Passed::Losses((self.losses(model, self.batch::<B>(samples, &device), passage.context), ()))
    }
}
