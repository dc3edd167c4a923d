//! A model and its task in the form that Burn's learner trains: forward, the fence, backward.
//!
//! The fence is one half of the second rule in `replica.rs`: no backward runs while another thread still registers
//! operations on the autodiff graph.

use std::fmt::{Debug, Formatter};
use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_train::{InferenceStep, ItemLazy, TrainOutput, TrainStep};
use tracing::info_span;

use super::counts::Counts;
use super::device::HostBackend;
use super::outcome::Sums;
use super::task::{Evaluated, Task};
use crate::nn::{BatchStatistics, ForwardContext};
use crate::ops::settle;

/// A task, shared by all replicas.
pub struct Handle<T>(pub(super) Arc<T>);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Debug for Handle<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

/// A model and the handle on the task that it is trained on.
#[derive(Module, Debug)]
pub struct Trainee<B: Backend, M: Module<B>, H: Debug + Clone + Send + 'static> {
    model: M,
    #[module(skip)]
    task: H,
    backend: PhantomData<B>,
}

impl<B: Backend, M: Module<B>, H: Debug + Clone + Send + 'static> Trainee<B, M, H> {
    /// Combines both.
    pub fn new(model: M, task: H) -> Self {
        Self { model, task, backend: PhantomData }
    }

    /// Returns the model.
    pub fn into_model(self) -> M {
        self.model
    }
}

/// One replica's share of one micro-batch.
pub struct Micro<B: Backend, I> {
    /// Its samples.
    pub input: I,
    /// Their number.
    pub samples: usize,
    /// The weight of each sample's loss: one over the number of samples of the optimizer step, or zero for a replica
    /// without a sample, so that gradients add up over micro-batches and replicas to the mean over samples. Multiplied
    /// by the loss scale.
    pub weight: f64,
    /// How layers treat batch statistics and precision.
    pub context: ForwardContext<B>,
    /// Called between forward and backward to wait for the other replicas; unwinds if one of them is lost.
    pub fence: Option<Box<dyn FnOnce() + Send>>,
}

/// The output of a micro-batch beside its gradients.
#[derive(Debug)]
pub struct MicroOutput<B: HostBackend> {
    /// Loss and counts on the device, until they are read.
    pub sums: Option<Sums<B>>,
    /// Loss and counts of the whole step, in what Burn's learner reports.
    pub counts: Counts,
    /// For the running averages of batch-norm.
    pub statistics: Vec<BatchStatistics<Autodiff<B>>>,
}

/// The results of an evaluated batch on its device.
#[derive(Debug)]
pub struct Results<B: HostBackend> {
    /// The loss of every sample, `[samples]`.
    pub losses: Tensor<B, 1>,
    /// What the task counts, `[COUNTED]`, if it does.
    pub counted: Option<Tensor<B, 1>>,
    /// The task's answers, `[samples, ANSWERS]`, if it has any.
    pub answers: Option<Tensor<B, 2>>,
}

/// The output of an evaluated batch.
#[derive(Debug)]
pub struct EvaluationOutput<B: HostBackend> {
    /// On the device, until they are read.
    pub results: Option<Results<B>>,
    /// In what Burn's learner reports.
    pub counts: Counts,
}

impl<B: HostBackend> ItemLazy for MicroOutput<B> {
    type ItemSync = Counts;
    fn sync(self) -> Counts {
        self.counts
    }
}

impl<B: HostBackend> ItemLazy for EvaluationOutput<B> {
    type ItemSync = Counts;
    fn sync(self) -> Counts {
        self.counts
    }
}

impl<B: HostBackend, T: Task<B>> TrainStep for Trainee<Autodiff<B>, T::Model, Handle<T>> {
    type Input = Micro<Autodiff<B>, T::Input>;
    type Output = MicroOutput<B>;

    fn step(&self, micro: Self::Input) -> TrainOutput<Self::Output> {
        let Micro { input, samples, weight, context, fence } = micro;
        let forward = info_span!("forward").entered();
        let (losses, outputs) = self.task.0.losses(&self.model, input, &context);
        let loss = losses.sum();
        let objective = loss.clone() * weight;
        let device = loss.device();
        settle::<Autodiff<B>>(&device);
        drop(forward);
        if let Some(fence) = fence {
            info_span!("wait for replicas").in_scope(fence);
        }
        let backward = info_span!("backward").entered();
        let gradients = objective.backward();
        settle::<Autodiff<B>>(&device);
        drop(backward);
        let sums = Sums { loss: loss.inner(), counted: self.task.0.count(&outputs), samples };
        let (sums, counts) = (Some(sums), Counts::default());
        let output =
            TrainOutput::new(self, gradients, MicroOutput { sums, counts, statistics: context.into_statistics() });
        self.task.0.after_backward(&self.model, &outputs, &output.grads);
        output
    }
}

impl<B: HostBackend, T: Task<B>> InferenceStep for Trainee<B, Evaluated<B, T>, Handle<T>> {
    type Input = (T::Input, ForwardContext<B>);
    type Output = EvaluationOutput<B>;

    fn step(&self, (input, context): Self::Input) -> EvaluationOutput<B> {
        let (losses, outputs) = self.task.0.evaluate(&self.model, input, &context);
        let (counted, answers) = (self.task.0.count(&outputs), self.task.0.answers(&outputs));
        EvaluationOutput { results: Some(Results { losses, counted, answers }), counts: Counts::default() }
    }
}
