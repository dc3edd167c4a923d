//! A model and its task in the form that Burn's learner trains: a forward pass, and later its backward pass.

use std::fmt::{Debug, Formatter};
use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Tensor};
use burn_train::{InferenceStep, ItemLazy, TrainOutput, TrainStep};
use kiln_ops::{Awaited, as_type, cut, leaf, primitive, settle, tensor};

use super::outcome::Sums;
use super::probe::ProbePoint;
use super::task::Activations;
use super::{Evaluated, HostBackend, ModelPart, Passage, Passed, Task};
use crate::nn::{BatchStatistics, ForwardContext};

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
pub struct TaskModel<B: Backend, M: Module<B>, H: Debug + Clone + Send + 'static> {
    model: M,
    #[module(skip)]
    pub(super) task: H,
    backend: PhantomData<B>,
}

impl<B: Backend, M: Module<B>, H: Debug + Clone + Send + 'static> TaskModel<B, M, H> {
    pub fn new(model: M, task: H) -> Self {
        Self { model, task, backend: PhantomData }
    }

    pub fn into_model(self) -> M {
        self.model
    }
}

/// What Burn's learner trains: the model of a task, and the task.
pub type TrainingModel<B, T> = TaskModel<Autodiff<B>, <T as Task<B>>::Model, Handle<T>>;

/// One replica's share of one micro-batch.
#[derive(Clone)]
pub(super) struct Micro<B: Backend, I> {
    pub(super) input: I,
    pub(super) samples: usize,
    /// The weight of each sample's loss: one over the number of samples of the optimizer step, or zero for a replica
    /// without a sample, so that gradients add up over micro-batches and replicas to the mean over samples. Multiplied
    /// by the loss scale.
    pub(super) weight: f64,
    /// How layers treat batch statistics and precision.
    pub(super) context: ForwardContext<B>,
    /// Sees what units compute.
    pub(super) probe: Option<ProbePoint>,
}

/// A forward pass whose backward pass is still to come.
pub struct Pending<B: HostBackend, T: Task<B>> {
    model: TrainingModel<B, T>,
    /// Where the backward pass begins.
    objective: Tensor<Autodiff<B>, 1>,
    end: End<B, T>,
    samples: usize,
    context: ForwardContext<Autodiff<B>>,
    /// What the stage before has computed, as a leaf.
    leaf: Option<FloatTensor<Autodiff<B>>>,
}

enum End<B: HostBackend, T: Task<B>> {
    Losses(Tensor<Autodiff<B>, 1>, T::Outputs),
    /// At the next stage, which has the gradient, if this one needs it.
    Cut(FloatTensor<B>, Option<Awaited<B>>),
}

impl<B: HostBackend, T: Task<B>> Pending<B, T> {
    pub(super) fn activations(&self) -> Option<FloatTensor<B>> {
        if let End::Cut(activations, _) = &self.end { Some(activations.clone()) } else { None }
    }

    /// Takes the gradient of [`Pending::activations`].
    pub(super) fn set_gradient(&self, gradient: FloatTensor<B>) {
        if let End::Cut(_, Some(awaited)) = &self.end {
            awaited.set(gradient);
        }
    }
}

/// The output of a micro-batch in addition to its gradients.
#[derive(Debug)]
pub struct MicroOutput<B: HostBackend, O> {
    /// Loss and counts on the device, until they are read.
    pub sums: Option<Sums<B>>,
    /// For the running averages of batch-norm.
    pub statistics: Vec<BatchStatistics<Autodiff<B>>>,
    /// The gradient of what the units before have computed.
    pub gradient: Option<FloatTensor<B>>,
    /// Those of the task, if its last unit is among these.
    pub outputs: Option<O>,
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

/// Burn's learner gets none to report.
impl<B: HostBackend, O: Send> ItemLazy for MicroOutput<B, O> {
    type ItemSync = ();
    fn sync(self) {}
}

impl<B: HostBackend, T: Task<B>> TrainingModel<B, T> {
    pub(super) fn forward(self, micro: Micro<Autodiff<B>, T::Input>, part: ModelPart<B>) -> Pending<B, T> {
        let Micro { input, samples, weight, context, probe } = micro;
        let ModelPart { units, activations, is_trained_before } = part;
        let begin = if is_trained_before { leaf::<B> } else { <Autodiff<B> as AutodiffBackend>::from_inner };
        let x = activations.map(|x| begin(as_type::<B>(x, FloatDType::F32)));
        let behind = x.clone().filter(|_| is_trained_before);
        let passage = Passage { units, input, activations: x.map(Activations), context: &context };
        let (objective, end) = match self.through(passage, probe.as_ref()) {
            Passed::Losses((losses, outputs)) => {
                // In the order of the samples: Burn's sum of a vector on a CPU depends on the instruction set.
                let samples = losses.dims()[0];
                let loss = losses.reshape([samples, 1]).sum_dim(0).reshape([1]);
                (loss.clone() * weight, End::Losses(loss, outputs))
            }
            Passed::Activations(Activations(activations)) => {
                let inner = <Autodiff<B> as AutodiffBackend>::inner(activations.clone());
                let (end, awaited) = cut::<B>(activations);
                (end, End::Cut(inner, awaited))
            }
        };
        settle::<Autodiff<B>>(&objective.device());
        Pending { model: self, objective, end, samples, context, leaf: behind }
    }

    /// The task's forward pass; for a probe one unit after the other, each of them watched.
    pub(super) fn through(
        &self,
        passage: Passage<Autodiff<B>, T::Input>,
        probe: Option<&ProbePoint>,
    ) -> Passed<Autodiff<B>, T::Outputs> {
        let Some(probe) = probe else { return self.task.0.forward(&self.model, passage) };
        let Passage { units, input, mut activations, context } = passage;
        let all = self.task.0.units();
        for unit in units {
            let input = input.clone();
            let passage = Passage { units: unit..unit + 1, input, activations: activations.take(), context };
            match self.task.0.forward(&self.model, passage) {
                Passed::Activations(Activations(x)) => {
                    activations = Some(Activations(probe.output::<B>(unit, &all, x)));
                }
                Passed::Losses((losses, outputs)) => {
                    return Passed::Losses((tensor(probe.output::<B>(unit, &all, primitive(losses))), outputs));
                }
            }
        }
        Passed::Activations(activations.expect("every stage has a unit"))
    }
}

impl<B: HostBackend, T: Task<B>> TrainStep for TaskModel<Autodiff<B>, T::Model, Handle<T>> {
    type Input = Pending<B, T>;
    type Output = MicroOutput<B, T::Outputs>;

    fn step(&self, pending: Self::Input) -> TrainOutput<Self::Output> {
        let Pending { model, objective, end, samples, context, leaf } = pending;
        if let End::Cut(_, None) = end {
            let statistics = context.into_statistics();
            let item = MicroOutput { sums: None, statistics, gradient: None, outputs: None };
            return TrainOutput { grads: GradientsParams::new(), item };
        }
        let device = objective.device();
        let mut gradients = objective.backward();
        settle::<Autodiff<B>>(&device);
        let gradient = leaf.and_then(|leaf| <Autodiff<B> as AutodiffBackend>::grad_remove(&leaf, &mut gradients));
        let statistics = context.into_statistics();
        let (sums, outputs) = match end {
            End::Cut(..) => (None, None),
            End::Losses(loss, outputs) => {
                let counted = self.task.0.count(&outputs);
                (Some(Sums { loss: loss.inner(), counted, samples }), Some(outputs))
            }
        };
        TrainOutput::new(&model, gradients, MicroOutput { sums, statistics, gradient, outputs })
    }
}

impl<B: HostBackend, T: Task<B>> TaskModel<B, Evaluated<B, T>, Handle<T>> {
    /// Evaluates a part of the model, or all of it: the results at its end, or else what the next stage goes on with.
    pub(super) fn evaluate(
        &self,
        input: T::Input,
        part: ModelPart<B>,
        context: &ForwardContext<B>,
    ) -> Result<Results<B>, FloatTensor<B>> {
        let activations = part.activations.map(Activations);
        match self.task.0.evaluate(&self.model, Passage { units: part.units, input, activations, context }) {
            Passed::Activations(Activations(activations)) => Err(activations),
            Passed::Losses((losses, outputs)) => {
                Ok(Results { losses, counted: self.task.0.count(&outputs), answers: self.task.0.answers(&outputs) })
            }
        }
    }
}

/// Replicas validate by a function of their own.
impl<B: HostBackend, T: Task<B>> InferenceStep for TaskModel<B, Evaluated<B, T>, Handle<T>> {
    type Input = ();
    type Output = ();

    fn step(&self, _: ()) {
        unreachable!("replicas validate their own shards")
    }
}
