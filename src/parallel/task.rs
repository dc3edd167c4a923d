//! The interface between the engine and what it trains.
//!
//! A task defines the batch, the loss of a sample, and what is counted. The engine does the rest: the order and the
//! shards of samples, forward and backward, the mean over samples, loss scale, accumulation, reduction, clipping,
//! update, running statistics, averages, validation, checkpoints, and the loss of processes. So no task can lose a
//! gradient or weigh a sample twice.

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, ModuleDisplay};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn_dataset::Dataset;
use rayon::prelude::*;

use super::counts::Counts;
use super::device::HostBackend;
use super::loader::Shard;
use crate::error::{Error, Result};
use crate::nn::ForwardContext;

/// A split of the data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// For training.
    Training,
    /// For validation.
    Validation,
}

/// The model of a task without its gradients.
pub type Evaluated<B, T> = <<T as Task<B>>::Model as AutodiffModule<Autodiff<B>>>::InnerModule;

/// The loss of every sample, `[samples]`, and other outputs of a forward pass.
pub type Losses<B, Outputs = ()> = (Tensor<B, 1>, Outputs);

/// Something to train on backend `B`. One value serves all replicas, from their threads.
pub trait Task<B: HostBackend>: Send + Sync + 'static {
    /// The model. Layers of [`crate::nn`] synchronise batch-norm, mix precision and overlap the all-reduce.
    type Model: AutodiffModule<Autodiff<B>, InnerModule: ModuleDisplay> + ModuleDisplay + 'static;
    /// A sample as it is read.
    type Item: Send + 'static;
    /// Some samples in host memory.
    type Batch: Send + 'static;
    /// Some samples on a device.
    type Input: Send + 'static;
    /// The outputs of a forward pass for [`Task::count`] and [`Task::answers`].
    type Outputs: 'static;

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

    /// Prepares a batch of `items`, the samples of `shard`. Called ahead of the step, on the loader's thread.
    ///
    /// Random numbers must depend only on the experiment's seed, the epoch and the sample.
    ///
    /// # Errors
    /// If a sample is damaged, which ends the run.
    fn prepare(&self, split: Split, items: Vec<Self::Item>, shard: &Shard) -> Result<Self::Batch>;

    /// Puts a batch on a device.
    fn upload(&self, batch: Self::Batch, device: &B::Device) -> Self::Input;

    /// The forward pass. `context` tells layers how to treat batch statistics and in which precision to compute.
    fn losses(
        &self,
        model: &Self::Model,
        input: Self::Input,
        context: &ForwardContext<Autodiff<B>>,
    ) -> Losses<Autodiff<B>, Self::Outputs>;

    /// The forward pass of an evaluation.
    fn evaluate(
        &self,
        model: &Evaluated<B, Self>,
        input: Self::Input,
        context: &ForwardContext<B>,
    ) -> Losses<B, Self::Outputs>
    where
        Self: Sized;

    /// What to count over samples beside the loss, such as correct classifications: [`COUNTED`](super::COUNTED) sums.
    /// They stay on the device, since reading them would make it wait. Called after the backward pass.
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

    /// Called with this replica's gradients of one micro-batch, before accumulation and reduction.
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
