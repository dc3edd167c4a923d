//! One replica: a thread that owns a model, an optimizer and its shard of every batch.
//!
//! All replicas run the same program; collectives are the only places where they meet. Two rules keep Burn 0.21's
//! autodiff graph from losing gradients when several threads use it (tracel-ai/burn #5573), and both are kept here:
//!
//! 1. **Fresh leaves before every forward.** The model is forked before each micro-batch, so no leaf of the graph has
//!    been through a backward before.
//! 2. **No backward beside a forward.** All replicas meet after their forwards (the fence in the training step) and
//!    again after their backwards, before any of them touches the graph again.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::tensor::{Tensor, TensorData};
use burn::train::{InferenceStep, TrainOutput, TrainStep};

use super::collective::{Broken, Collective, Key, Operation};
use super::device::HostBackend;
use super::events::{EpochReport, Position, StepReport, TrainingState};
use super::plan::{Plan, Sharing};
use super::synchronization::Micro;
use crate::data::{Group, HostBatch, Loader};
use crate::error::{Error, Result};
use crate::model::{
    AbsorbStatistics, EvaluationBatch, Pass, Tally, TrainBatch, TrainStepOutput, Which, flat, flat_gradients,
    parameter_names, state_dict, with_flat,
};
use crate::optim::{Optimizer, Parameter, WeightAverage, clip_factor, global_norm};
use crate::state::StateDict;

/// A model that can be trained in replicas on backend `B`.
pub trait ReplicaModel<B: HostBackend>:
    TrainStep<Input = TrainBatch<Autodiff<B>>, Output = TrainStepOutput<Autodiff<B>>>
    + AutodiffModule<Autodiff<B>, InnerModule: InferenceStep<Input = EvaluationBatch<B>, Output = Tally>>
    + AbsorbStatistics<Autodiff<B>>
    + 'static
{
}

impl<B: HostBackend, M> ReplicaModel<B> for M where
    M: TrainStep<Input = TrainBatch<Autodiff<B>>, Output = TrainStepOutput<Autodiff<B>>>
        + AutodiffModule<Autodiff<B>, InnerModule: InferenceStep<Input = EvaluationBatch<B>, Output = Tally>>
        + AbsorbStatistics<Autodiff<B>>
        + 'static
{
}

/// What a replica tells the coordinator.
#[derive(Debug)]
pub(super) enum Event {
    Step(StepReport),
    Validating { done: usize, total: usize },
    Epoch(EpochReport),
    Checkpoint(Box<TrainingState>),
}

/// The state a run starts from, beside the model.
#[derive(Debug, Clone, Default)]
pub struct StartingPoint {
    /// Where the run stands.
    pub position: Position,
    /// What the optimizer remembers, when resuming.
    pub optimizer: Option<StateDict>,
    /// The averaged model's values, when resuming with averaging.
    pub average: Option<Vec<Vec<f32>>>,
}

/// One replica of the model and all it needs.
pub(super) struct Replica<B: HostBackend, M> {
    plan: Arc<Plan>,
    collective: Arc<dyn Collective>,
    device: B::Device,
    model: M,
    /// Absent where another replica updates the weights.
    optimizer: Option<Optimizer<B>>,
    /// On the first replica only.
    average: Option<WeightAverage<B>>,
    position: Position,
    batches: Loader,
    /// Called on the first replica only.
    report: Box<dyn FnMut(Event) + Send>,
}

/// What a step gives beside new weights.
struct StepResult {
    tally: Tally,
    gradient_norm: f64,
    stop: bool,
}

impl From<Broken> for Error {
    fn from(verdict: Broken) -> Self {
        Self::Training(verdict.0)
    }
}

impl<B: HostBackend, M: ReplicaModel<B>> Replica<B, M> {
    pub(super) fn new(
        plan: Arc<Plan>,
        collective: Arc<dyn Collective>,
        model: M,
        start: &StartingPoint,
        report: Box<dyn FnMut(Event) + Send>,
    ) -> Result<Self> {
        let rank = collective.rank();
        let device = B::open(plan.world.device_of(rank))?;
        let model = model.fork(&device);
        let optimizer = (plan.sharing == Sharing::Replicated || rank == 0)
            .then(|| Self::optimizer(&plan, &model, start, &device))
            .transpose()?;
        let averaged = rank == 0 && plan.optim.ema_decay > 0.0;
        let average = averaged.then(|| {
            let values = match &start.average {
                Some(values) => values.iter().map(|value| upload(value.clone(), &device)).collect(),
                None => flat(&model, Which::All),
            };
            WeightAverage::new(plan.optim.ema_decay, values)
        });
        let batches = plan.shards(rank, &start.position)?;
        Ok(Self {
            position: start.position.clone(),
            plan,
            collective,
            device,
            model,
            optimizer,
            average,
            batches,
            report,
        })
    }

    fn optimizer(plan: &Plan, model: &M, start: &StartingPoint, device: &B::Device) -> Result<Optimizer<B>> {
        let state = state_dict(model);
        let vector = |name: &String| state.get(name).is_some_and(|tensor| tensor.shape().len() < 2);
        let names = parameter_names(model).into_iter();
        let tensors = names.map(|name| Parameter { vector: vector(&name), name }).collect();
        let mut optimizer = Optimizer::new(&plan.optim, tensors);
        if let Some(state) = &start.optimizer {
            optimizer.load(state, device)?;
        }
        Ok(optimizer)
    }

    /// Trains to the end of the plan or until somebody asks to stop, and returns the model.
    pub(super) fn train(&mut self) -> Result<()> {
        while self.position.epoch < self.plan.epochs {
            while self.position.step_in_epoch < self.plan.sampler.steps_per_epoch() {
                let stop = self.advance()?;
                if stop {
                    self.save(false);
                    return Ok(());
                }
                if self.position.global_step >= self.plan.last_step {
                    break;
                }
                let every = self.plan.save_every_steps;
                if every > 0 && self.position.global_step.is_multiple_of(every) {
                    self.save(false);
                }
            }
            let finished = self.position.step_in_epoch >= self.plan.sampler.steps_per_epoch();
            self.close_epoch(finished)?;
            if self.position.global_step >= self.plan.last_step {
                break;
            }
        }
        Ok(())
    }

    /// Trains with nothing getting out but a verdict: a panic, or the unwinding of a broken collective, becomes an
    /// error, and every error breaks the group so that no other replica waits for this one.
    pub(super) fn run(mut self) -> Result<M> {
        let result = catch_unwind(AssertUnwindSafe(|| self.train())).unwrap_or_else(|panic| Err(self.verdict(panic)));
        if let Err(error) = &result {
            self.collective.abort(error.to_string());
        }
        result.map(|()| self.model)
    }

    fn verdict(&self, panic: Box<dyn Any + Send>) -> Error {
        let panic = match panic.downcast::<Broken>() {
            Ok(verdict) => return (*verdict).into(),
            Err(panic) => panic,
        };
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Error::Training(format!(
            "replica {} panicked at step {}: {}; the last checkpoint is intact, continue with --resume latest",
            self.collective.rank(),
            self.position.global_step + 1,
            text.unwrap_or("no message")
        ))
    }

    /// One optimizer step; true when the run is asked to stop.
    fn advance(&mut self) -> Result<bool> {
        let start = Instant::now();
        let group = self.plan.sampler.group(self.position.epoch, self.position.step_in_epoch);
        let learning_rate = self.plan.schedule.at(self.position.global_step);
        let result = self.step(&group, learning_rate)?;
        self.position.global_step += 1;
        self.position.step_in_epoch += 1;
        self.position.samples_seen += result.tally.samples as u64;
        self.position.running += result.tally;
        if self.collective.rank() == 0 {
            let samples = if self.plan.report_samples { group.micro_batches.concat() } else { Vec::new() };
            (self.report)(Event::Step(StepReport {
                step: self.position.global_step,
                epoch: self.position.epoch,
                step_in_epoch: self.position.step_in_epoch,
                tally: result.tally,
                learning_rate,
                gradient_norm: result.gradient_norm,
                duration: start.elapsed(),
                samples,
            }));
        }
        Ok(result.stop)
    }

    /// Forward and backward over the group's micro-batches, one reduction, one update.
    fn step(&mut self, group: &Group, learning_rate: f64) -> Result<StepResult> {
        let weight = 1.0 / group.samples() as f64;
        let mut gradients: Vec<Tensor<B, 1>> = Vec::new();
        let mut tally = Tally::default();
        for micro_batch in 0..group.micro_batches.len() {
            let (share, counted) = self.micro_batch(micro_batch, weight)?;
            tally += counted;
            gradients = if gradients.is_empty() {
                share
            } else {
                gradients.into_iter().zip(share).map(|(sum, new)| sum + new).collect()
            };
        }
        let (tally, stop) = self.exchange(tally)?;
        let gradients = self.reduce(gradients)?;
        let gradient_norm = global_norm(&gradients);
        if !gradient_norm.is_finite() {
            return Err(self.not_finite("the gradient", None));
        }
        self.update(learning_rate, gradients, clip_factor(gradient_norm, self.plan.optim.clip_grad_norm))?;
        Ok(StepResult { tally, gradient_norm, stop })
    }

    fn key(&self, operation: Operation) -> Key {
        Key { step: self.position.global_step, micro_batch: 0, operation }
    }

    /// This replica's share of one micro-batch: its summand of the mean gradient, and its losses and hits.
    fn micro_batch(&mut self, micro_batch: usize, weight: f64) -> Result<(Vec<Tensor<B, 1>>, Tally)> {
        let batch = self.batches.next().ok_or_else(|| Error::Training("the loader ended before the run".into()))?;
        let present = !batch.labels.is_empty();
        let key = Key { micro_batch, ..self.key(Operation::BackwardDone) };
        let micro = Micro::new(self.collective.clone(), key);
        let batch = self.to_device(batch, present, weight, &micro);
        self.model = self.model.clone().fork(&self.device);
        let TrainOutput { grads, item } = self.model.step(batch);
        self.collective.barrier(key)?;
        let gradients = flat_gradients(&self.model, grads).map_err(|tensor| {
            let name = parameter_names(&self.model).swap_remove(tensor);
            Error::Training(format!("no gradient for '{name}' on replica {}: {key}", self.collective.rank()))
        })?;
        if present {
            self.model = self.model.clone().absorb(item.statistics);
        }
        Ok((gradients, if present { item.tally } else { Tally::default() }))
    }

    fn to_device(&self, batch: HostBatch, present: bool, weight: f64, micro: &Micro) -> TrainBatch<Autodiff<B>> {
        let [height, width] = batch.size;
        // A replica without a sample runs one black image of weight zero: it has to be there for every collective.
        let (pixels, labels) =
            if present { (batch.pixels, batch.labels) } else { (vec![0.0; 3 * height * width], vec![0]) };
        let count = labels.len();
        let labels: Vec<i32> = labels.into_iter().map(|label| label as i32).collect();
        let synchronized = self.plan.sync_bn && self.collective.size() > 1;
        let images = Tensor::<B, 4>::from_data(TensorData::new(pixels, [count, 3, height, width]), &self.device);
        TrainBatch {
            images: Tensor::from_inner(images),
            labels: Tensor::from_data(TensorData::new(labels, [count]), &self.device),
            weight: if present { weight } else { 0.0 },
            pass: if synchronized { Pass::synchronized(micro.statistics(), present) } else { Pass::local() },
            fence: (self.collective.size() > 1).then(|| micro.fence()),
        }
    }

    /// Adds up losses and hits, and agrees on whether to stop. A loss that is not a number ends the run here, before
    /// it can reach the weights.
    fn exchange(&self, tally: Tally) -> Result<(Tally, bool)> {
        let stop = f64::from(u8::from(self.plan.stop.reason().is_some()));
        let mut values = tally.to_values().to_vec();
        values.push(stop);
        let all = self.collective.all_gather(self.key(Operation::Tally), values)?;
        let mut total = Tally::default();
        for (replica, values) in all.iter().enumerate() {
            let tally = Tally::from_values(values);
            if !tally.loss.is_finite() {
                return Err(self.not_finite("the loss", Some(replica)));
            }
            total += tally;
        }
        Ok((total, all.iter().any(|values| values[4] > 0.0)))
    }

    fn not_finite(&self, what: &str, replica: Option<usize>) -> Error {
        let place = replica.map_or(String::new(), |replica| format!(" on replica {replica}"));
        Error::Training(format!(
            "{what} is not finite{place} at step {}; no weight was changed by it: lower --learning-rate, lengthen \
             --warmup-epochs or set --clip-grad-norm",
            self.position.global_step + 1
        ))
    }

    /// The sum of all replicas' gradients, which is the mean over the samples of the step.
    fn reduce(&self, gradients: Vec<Tensor<B, 1>>) -> Result<Vec<Tensor<B, 1>>> {
        if self.collective.size() == 1 {
            return Ok(gradients);
        }
        let lengths: Vec<usize> = gradients.iter().map(|gradient| gradient.dims()[0]).collect();
        let sum = self.collective.all_reduce(self.key(Operation::Gradients), download(gradients))?;
        Ok(unpack(&sum, &lengths, &self.device))
    }

    /// One optimizer step, here or on the first replica.
    fn update(&mut self, learning_rate: f64, gradients: Vec<Tensor<B, 1>>, factor: f64) -> Result<()> {
        let params = flat(&self.model, Which::Trained);
        let lengths: Vec<usize> = params.iter().map(|param| param.dims()[0]).collect();
        let mut updated = self.optimizer.as_mut().map(|optimizer| {
            let scaled = |gradient: Tensor<B, 1>| if factor < 1.0 { gradient * factor } else { gradient };
            optimizer.step(learning_rate, params, gradients.into_iter().map(scaled).collect())
        });
        if self.plan.sharing == Sharing::Central && self.collective.size() > 1 {
            let values = updated.take().map(download);
            let values = self.collective.broadcast(self.key(Operation::Weights), 0, values)?;
            updated = Some(unpack(&values, &lengths, &self.device));
        }
        if let Some(updated) = updated {
            self.model = with_flat(self.model.clone(), Which::Trained, updated);
        }
        if let Some(average) = &mut self.average {
            average.update(flat(&self.model, Which::All));
        }
        Ok(())
    }

    /// Validates, reports, saves, and turns to the next epoch if this one is finished.
    fn close_epoch(&mut self, finished: bool) -> Result<()> {
        let validation = self.validate()?;
        let accuracy = validation.accuracy();
        let is_best = self.position.best.is_none_or(|(best, _)| accuracy > best);
        if is_best {
            self.position.best = Some((accuracy, self.position.global_step));
        }
        let epoch = self.position.epoch;
        if self.collective.rank() == 0 {
            (self.report)(Event::Epoch(EpochReport {
                epoch,
                step: self.position.global_step,
                training: self.position.running,
                validation,
                is_best,
                learning_rate: self.plan.schedule.at(self.position.global_step.saturating_sub(1)),
            }));
        }
        let over = !finished || epoch + 1 == self.plan.epochs || self.position.global_step >= self.plan.last_step;
        if finished {
            self.position.epoch += 1;
            self.position.step_in_epoch = 0;
            self.position.running = Tally::default();
        }
        let every = self.plan.save_every_epochs;
        let due = every > 0 && (epoch + 1).is_multiple_of(every);
        let wanted = every > 0 || self.plan.save_every_steps > 0;
        if wanted && (due || over || is_best) {
            self.save(is_best);
        }
        Ok(())
    }

    /// Losses and hits over the whole validation set, each image once. No collective inside the model.
    fn validate(&mut self) -> Result<Tally> {
        let model = self.evaluation_model()?.valid();
        let batches = self.plan.validation_shard(self.collective.rank());
        let total = batches.len();
        let mut tally = Tally::default();
        for (done, ids) in batches.into_iter().enumerate() {
            tally += model.step(self.plan.evaluation_batch::<B>(&ids, &self.device));
            if self.collective.rank() == 0 {
                (self.report)(Event::Validating { done: done + 1, total });
            }
        }
        let all = self.collective.all_gather(self.key(Operation::Validation), tally.to_values().to_vec())?;
        let mut sum = Tally::default();
        all.iter().for_each(|values| sum += Tally::from_values(values));
        Ok(sum)
    }

    /// The first replica's model, averaged if averaging is on. Where all replicas hold the same, nothing is sent.
    fn evaluation_model(&self) -> Result<M> {
        let averaging = self.plan.optim.ema_decay > 0.0;
        let alone = self.collective.size() == 1;
        if !averaging && (alone || self.plan.sync_bn) {
            return Ok(self.model.clone());
        }
        let own = flat(&self.model, Which::All);
        let lengths: Vec<usize> = own.iter().map(|tensor| tensor.dims()[0]).collect();
        let values = self.average.as_ref().map_or(own, |average| average.values().to_vec());
        if alone {
            return Ok(with_flat(self.model.clone(), Which::All, values));
        }
        let sent = (self.collective.rank() == 0).then(|| download(values));
        let values = self.collective.broadcast(self.key(Operation::EvaluationModel), 0, sent)?;
        Ok(with_flat(self.model.clone(), Which::All, unpack(&values, &lengths, &self.device)))
    }

    /// Hands the complete state to the coordinator; the first replica does it for all.
    fn save(&mut self, is_best: bool) {
        let Some(optimizer) = self.optimizer.as_ref().filter(|_| self.collective.rank() == 0) else { return };
        let averaged = |average: &WeightAverage<B>| {
            state_dict(&with_flat(self.model.clone(), Which::All, average.values().to_vec()))
        };
        let state = TrainingState {
            position: self.position.clone(),
            weights: state_dict(&self.model),
            optimizer: optimizer.state(),
            average: self.average.as_ref().map(averaged),
            is_best,
        };
        (self.report)(Event::Checkpoint(Box::new(state)));
    }
}

fn upload<B: HostBackend>(values: Vec<f32>, device: &B::Device) -> Tensor<B, 1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), device)
}

/// All tensors' values, one after the other.
fn download<B: HostBackend>(tensors: Vec<Tensor<B, 1>>) -> Vec<f32> {
    let total = tensors.iter().map(|tensor| tensor.dims()[0]).sum();
    let mut values = Vec::with_capacity(total);
    for tensor in tensors {
        let data = tensor.into_data();
        values.extend_from_slice(data.as_slice::<f32>().expect("gradients and weights are f32"));
    }
    values
}

/// The inverse of [`download`].
fn unpack<B: HostBackend>(mut values: &[f32], lengths: &[usize], device: &B::Device) -> Vec<Tensor<B, 1>> {
    let mut take = |length: usize| {
        let (head, tail) = values.split_at(length);
        values = tail;
        upload(head.to_vec(), device)
    };
    lengths.iter().map(|length| take(*length)).collect()
}
