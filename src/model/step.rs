//! One training step and one validation step of the network, in the form that Burn's learner asks for.
//!
//! Between forward and backward a replica meets the others at a [`Fence`], so that no backward runs while another thread
//! still registers operations on the autodiff graph: one half of the rules that `parallel::replica` explains.

use std::fmt::Debug;
use std::sync::Arc;

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use burn::train::{InferenceStep, ItemLazy, TrainOutput, TrainStep};
use tracing::info_span;

use super::loss::{cross_entropy, rank_of_target};
use super::pass::{BatchStatistics, Pass};
use super::resnet::ResNet;
use crate::ops::{MixedBackend, PrecisionKind, settle};

/// A point that a replica passes only together with the others.
pub trait Fence: Debug + Send + Sync {
    /// Waits for the others. Unwinds when one of them is gone: see `parallel::local`.
    fn wait(&self);
}

/// One replica's share of one micro-batch.
#[derive(Debug)]
pub struct TrainBatch<B: Backend> {
    /// Normalised images `[batch, 3, height, width]`; for a replica without a sample, any image.
    pub images: Tensor<B, 4>,
    /// Classes `[batch]`.
    pub labels: Tensor<B, 1, Int>,
    /// The classes of what is mixed into each image, `[batch]`, and the share of the image's own class, 0 to 1.
    pub mixed: Option<(Tensor<B, 1, Int>, f64)>,
    /// The weight of each sample's loss: one over the number of samples behind the optimizer step, or zero for a
    /// replica without a sample. Gradients then add up over micro-batches and replicas to the mean over samples. A loss
    /// scale multiplies it.
    pub weight: f64,
    /// How batch-norm is done.
    pub pass: Pass<B>,
    /// Where forward ends.
    pub fence: Option<Arc<dyn Fence>>,
}

/// What a training step reports beside its gradients.
#[derive(Debug, Clone, Default)]
pub struct TrainStepOutput<B: Backend> {
    /// Losses and hits; the loss is the one trained on, with label smoothing.
    pub tally: Tally,
    /// Logits `[batch, classes]`, row-major.
    pub logits: Vec<f32>,
    /// Statistics for the running averages.
    pub statistics: Vec<BatchStatistics<B>>,
}

/// Images and labels to evaluate on.
#[derive(Debug)]
pub struct EvaluationBatch<B: Backend> {
    /// Normalised images `[batch, 3, height, width]`.
    pub images: Tensor<B, 4>,
    /// Classes `[batch]`.
    pub labels: Tensor<B, 1, Int>,
    /// What convolutions and the linear layer compute in.
    pub precision: PrecisionKind,
}

/// What a model takes an image for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The class with the largest logit.
    pub class: u32,
    /// Its probability.
    pub confidence: f32,
}

impl Prediction {
    /// What the logits of one sample, one per class, say. A logit that is not a number never wins.
    pub fn of(logits: &[f32]) -> Self {
        let largest = |best: usize, class: usize| if logits[class] > logits[best] { class } else { best };
        let first = logits.iter().position(|logit| !logit.is_nan()).unwrap_or(0);
        let class = (first..logits.len()).fold(first, largest);
        let sum: f32 = logits.iter().map(|logit| (logit - logits[class]).exp()).sum();
        Self { class: class as u32, confidence: 1.0 / sum }
    }
}

/// What an evaluation step reports.
#[derive(Debug, Clone, Default)]
pub struct EvaluationOutput {
    /// Losses and hits; the loss is without label smoothing.
    pub tally: Tally,
    /// One per image, in the order of the batch.
    pub predictions: Vec<Prediction>,
}

/// Sums over samples; they add up over batches and replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// Sum of the samples' losses.
    pub loss: f64,
    /// Samples whose class has the largest logit.
    pub top1: usize,
    /// Samples whose class is among the five largest logits.
    pub top5: usize,
    /// Samples.
    pub samples: usize,
}

impl Tally {
    /// Counts the hits in `logits` `[batch, classes]` and takes `loss` as their losses' sum.
    fn count(logits: &[f32], labels: &[i64], loss: f64) -> Self {
        let classes = logits.len() / labels.len().max(1);
        let ranks = logits.chunks(classes.max(1)).zip(labels);
        let ranks: Vec<usize> = ranks.map(|(row, label)| rank_of_target(row, *label as usize)).collect();
        let within = |places: usize| ranks.iter().filter(|rank| **rank < places).count();
        Self { loss, top1: within(1), top5: within(5), samples: labels.len() }
    }

    /// The message form between replicas.
    pub fn to_values(self) -> [f64; 4] {
        [self.loss, self.top1 as f64, self.top5 as f64, self.samples as f64]
    }

    /// The inverse of [`Tally::to_values`].
    pub fn from_values(values: &[f64]) -> Self {
        let count = |i: usize| values[i] as usize;
        Self { loss: values[0], top1: count(1), top5: count(2), samples: count(3) }
    }

    /// Adds one step to those of an epoch. A loss that overflowed would hide all others: such a step counts with its
    /// samples, and with the mean of the epoch so far for a loss.
    pub fn add_step(&mut self, mut step: Self) {
        if !step.loss.is_finite() {
            step.loss = if self.samples == 0 { 0.0 } else { self.mean_loss() * step.samples as f64 };
        }
        *self += step;
    }

    /// Mean loss per sample.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.samples as f64
    }

    /// Share of samples whose class has the largest logit.
    pub fn accuracy(&self) -> f64 {
        self.top1 as f64 / self.samples as f64
    }

    /// Share of samples whose class is among the five largest logits.
    pub fn top5_accuracy(&self) -> f64 {
        self.top5 as f64 / self.samples as f64
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.top1 += other.top1;
        self.top5 += other.top5;
        self.samples += other.samples;
    }
}

impl<B: Backend> ItemLazy for TrainStepOutput<B> {
    type ItemSync = Tally;
    fn sync(self) -> Tally {
        self.tally
    }
}

impl ItemLazy for EvaluationOutput {
    type ItemSync = Tally;
    fn sync(self) -> Tally {
        self.tally
    }
}

impl ItemLazy for Tally {
    type ItemSync = Self;
    fn sync(self) -> Self {
        self
    }
}

impl<B: AutodiffBackend + MixedBackend> TrainStep for ResNet<B> {
    type Input = TrainBatch<B>;
    type Output = TrainStepOutput<B>;

    fn step(&self, batch: TrainBatch<B>) -> TrainOutput<TrainStepOutput<B>> {
        let device = batch.labels.device();
        let forward = info_span!("forward").entered();
        let logits = self.forward(batch.images, &batch.pass);
        let against = |labels| cross_entropy(logits.clone(), labels, self.label_smoothing());
        let own = against(batch.labels.clone());
        let losses = match batch.mixed {
            // Cross-entropy is linear in the target: this is that of both classes by their shares.
            Some((others, share)) => own * share + against(others) * (1.0 - share),
            None => own,
        };
        let loss = losses.sum();
        let objective = loss.clone() * batch.weight;
        settle::<B>(&device);
        drop(forward);
        if let Some(fence) = &batch.fence {
            info_span!("wait for replicas").in_scope(|| fence.wait());
        }
        let backward = info_span!("backward").entered();
        let gradients = objective.backward();
        settle::<B>(&device);
        drop(backward);
        let logits = to_host(logits.inner());
        let labels: Vec<i64> = batch.labels.into_data().iter::<i64>().collect();
        let loss = f64::from(to_host(loss.inner())[0]);
        let tally = Tally::count(&logits, &labels, loss);
        let output = TrainStepOutput { tally, logits, statistics: batch.pass.into_statistics() };
        TrainOutput::new(self, gradients, output)
    }
}

impl<B: MixedBackend> InferenceStep for ResNet<B> {
    type Input = EvaluationBatch<B>;
    type Output = EvaluationOutput;

    fn step(&self, batch: EvaluationBatch<B>) -> EvaluationOutput {
        let labels: Vec<i64> = batch.labels.clone().into_data().iter::<i64>().collect();
        let logits = self.forward(batch.images, &Pass::evaluate().in_precision(batch.precision));
        let losses = to_host(cross_entropy(logits.clone(), batch.labels, 0.0));
        let classes = logits.dims()[1];
        let logits = to_host(logits);
        let predictions = logits.chunks(classes).map(Prediction::of).collect();
        let tally = Tally::count(&logits, &labels, losses.into_iter().map(f64::from).sum());
        EvaluationOutput { tally, predictions }
    }
}

fn to_host<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}
