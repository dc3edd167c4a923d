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

use super::counts::{COUNTED, Counts};
use super::device::HostBackend;
use super::loader::Shard;
use crate::error::Result;
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

/// Something to train on backend `B`. One value serves all replicas, from their threads.
pub trait Task<B: HostBackend>: Send + Sync + 'static {
    /// What is trained. Layers of [`crate::nn`] synchronise batch-norm, mix precision and overlap the all-reduce.
    type Model: AutodiffModule<Autodiff<B>, InnerModule: ModuleDisplay> + ModuleDisplay + 'static;
    /// Some samples in host memory.
    type Batch: Send + 'static;
    /// The same on a device.
    type Input: Send + 'static;
    /// What a forward pass leaves for [`Task::count`] and [`Task::answers`].
    type Outputs: 'static;

    /// How many numbers [`Task::answers`] has for each sample.
    const ANSWERS: usize = 0;

    /// Reads the samples of `shard`, of which there is at least one. Called ahead of the step, on a thread of its own.
    ///
    /// Whatever is drawn at random here must depend on the experiment's seed, the epoch and the sample alone.
    ///
    /// # Errors
    /// When a sample cannot be read, which ends the run.
    fn batch(&self, split: Split, shard: &Shard) -> Result<Self::Batch>;

    /// Brings a batch to a device.
    fn to_device(&self, batch: Self::Batch, device: &B::Device) -> Self::Input;

    /// The loss of every sample, `[samples]`. Nothing but the forward pass belongs here; layers that take `context` are told
    /// by it how to treat batch statistics, and in which precision to compute.
    fn losses(
        &self,
        model: &Self::Model,
        input: Self::Input,
        context: &ForwardContext<Autodiff<B>>,
    ) -> (Tensor<Autodiff<B>, 1>, Self::Outputs);

    /// The same for samples that are only measured.
    fn evaluate(
        &self,
        model: &Evaluated<B, Self>,
        input: Self::Input,
        context: &ForwardContext<B>,
    ) -> (Tensor<B, 1>, Self::Outputs)
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
