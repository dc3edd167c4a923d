//! What is trained, as the engine sees it.
//!
//! A task says what a batch is, what the loss of a sample is, and what is counted. All else is the engine's: the order of
//! samples and who gets which, the graph and when it is walked, the mean over samples, loss scale, accumulation,
//! reduction, clipping, update, running statistics, averages, validation, checkpoints, and what happens when somebody is
//! lost. So no task can lose a gradient, or weigh a sample twice.

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, ModuleDisplay};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn_dataset::Dataset;
use rayon::prelude::*;

use super::counts::{COUNTED, Counts};
use super::device::HostBackend;
use super::loader::Shard;
use crate::error::{Error, Result};
use crate::nn::ForwardContext;

/// The samples to learn from, or those to measure on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// To learn from.
    Training,
    /// To measure on.
    Validation,
}

/// The model of a task without its gradients.
pub type Evaluated<B, T> = <<T as Task<B>>::Model as AutodiffModule<Autodiff<B>>>::InnerModule;

/// The loss of every sample, `[samples]`, and what else a forward pass leaves.
pub type Losses<B, Outputs = ()> = (Tensor<B, 1>, Outputs);

/// Something to train on backend `B`. One value serves all replicas, from their threads.
pub trait Task<B: HostBackend>: Send + Sync + 'static {
    /// What is trained. Layers of [`crate::nn`] synchronise batch-norm, mix precision and overlap the all-reduce.
    type Model: AutodiffModule<Autodiff<B>, InnerModule: ModuleDisplay> + ModuleDisplay + 'static;
    /// A sample as it is read.
    type Item: Send;
    /// Some samples on a device.
    type Input: Send + 'static;
    /// What a forward pass leaves for [`Task::count`] and [`Task::answers`].
    type Outputs: 'static;

    /// How many numbers [`Task::answers`] has for each sample.
    const ANSWERS: usize = 0;

    /// The samples of `split`: any dataset of `burn_dataset` whose items depend on their index alone. One that draws them,
    /// such as `SamplerDataset`, would give other numbers in every run.
    fn dataset(&self, split: Split) -> &dyn Dataset<Self::Item>;

    /// Reads samples by their ids, in parallel. A task whose data come cheaper by the batch reads them in its own way.
    ///
    /// # Errors
    /// When there is no such sample.
    fn fetch(&self, split: Split, ids: &[u32]) -> Result<Vec<Self::Item>> {
        fetch(self.dataset(split), ids)
    }

    /// Makes a batch of `items`, the samples of `shard`, and brings it to a device. Called ahead of the step, on a thread of
    /// its own.
    ///
    /// Whatever is drawn at random here must depend on the experiment's seed, the epoch and the sample alone.
    ///
    /// # Errors
    /// When a sample is damaged, which ends the run.
    fn batch(&self, split: Split, items: Vec<Self::Item>, shard: &Shard, device: &B::Device) -> Result<Self::Input>;

    /// The forward pass, and nothing else; layers that take `context` are told by it how to treat batch statistics, and in
    /// which precision to compute.
    fn losses(
        &self,
        model: &Self::Model,
        input: Self::Input,
        context: &ForwardContext<Autodiff<B>>,
    ) -> Losses<Autodiff<B>, Self::Outputs>;

    /// The same for samples that are only measured.
    fn evaluate(
        &self,
        model: &Evaluated<B, Self>,
        input: Self::Input,
        context: &ForwardContext<B>,
    ) -> Losses<B, Self::Outputs>
    where
        Self: Sized;

    /// What to add up over samples beside the loss, such as those that were classified right. Called when the backward
    /// pass is over.
    fn count(&self, _outputs: &Self::Outputs) -> [f64; COUNTED] {
        [0.0; COUNTED]
    }

    /// What a validation is to keep of each sample: [`Task::ANSWERS`] numbers for one after the other.
    fn answers(&self, _outputs: &Self::Outputs) -> Vec<f64> {
        Vec::new()
    }

    /// How good a validation is; the model with the greatest number is the best. The mean loss with its sign turned,
    /// unless a task knows better.
    fn score(&self, counts: &Counts) -> f64 {
        -counts.mean_loss()
    }

    /// Whether the parameter `name` belongs to the head, which may have a learning rate of its own.
    fn is_head(&self, _name: &str) -> bool {
        false
    }

    /// Hears of this replica's gradients of one micro-batch, before anything happens to them.
    fn after_backward(&self, _model: &Self::Model, _outputs: &Self::Outputs, _gradients: &GradientsParams) {}
}

/// Samples of `dataset`, in parallel.
///
/// # Errors
/// [`Error::Data`] when there is no such sample.
pub fn fetch<I: Send>(dataset: &dyn Dataset<I>, ids: &[u32]) -> Result<Vec<I>> {
    /// Samples that a thread reads together.
    const FEW: usize = 8;
    let read = |id: &u32| {
        let missing = || Error::Data(format!("there is no sample {id} among the {} of the data set", dataset.len()));
        dataset.get(*id as usize).ok_or_else(missing)
    };
    ids.par_iter().with_min_len(FEW).map(read).collect()
}
