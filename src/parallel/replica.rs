//! One replica: a thread that owns a model, an optimizer and its shard of every batch.
//!
//! All replicas run the same program; collectives are the only places where they meet. This file is the story from the
//! first step to the last; `step.rs` has one step, `epoch.rs` what follows the last step of an epoch.
//!
//! Two rules keep Burn 0.21's autodiff graph from losing gradients when several threads use it (tracel-ai/burn #5573),
//! and both are kept, and marked, in `step.rs`:
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
use burn::train::{InferenceStep, TrainStep};

use super::collective::{Broken, Collective, Key, Operation};
use super::device::HostBackend;
use super::events::{EpochReport, Position, StepReport, TrainingState};
use super::plan::{Plan, Sharing};
use super::transfer::upload;
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::model::{
    AbsorbStatistics, EvaluationBatch, Tally, TrainBatch, TrainStepOutput, Which, flat, parameter_names, state_dict,
};
use crate::optim::{Optimizer, Parameter, WeightAverage};
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
    pub(super) plan: Arc<Plan>,
    pub(super) collective: Arc<dyn Collective>,
    pub(super) device: B::Device,
    pub(super) model: M,
    /// Absent where another replica updates the weights.
    pub(super) optimizer: Option<Optimizer<B>>,
    /// On the first replica of the world only.
    pub(super) average: Option<WeightAverage<B>>,
    pub(super) position: Position,
    pub(super) batches: Loader,
    /// Called on the first replica of the process only.
    pub(super) report: Box<dyn FnMut(Event) + Send>,
}

impl From<Broken> for Error {
    fn from(verdict: Broken) -> Self {
        match verdict {
            Broken::Replica(reason) => Self::Training(reason),
            Broken::Peer(reason) => Self::PeerLost(reason),
        }
    }
}

impl From<&Error> for Broken {
    fn from(error: &Error) -> Self {
        match error {
            Error::PeerLost(reason) => Self::Peer(reason.clone()),
            other => Self::Replica(other.to_string()),
        }
    }
}

impl<B: HostBackend, M: ReplicaModel<B>> Replica<B, M> {
    /// Makes a replica by `new`. When it cannot be made, no other replica of `group` waits for this one.
    pub(super) fn set_up(group: &dyn Collective, new: impl FnOnce() -> Result<Self>) -> Result<Self> {
        let replica = catch_unwind(AssertUnwindSafe(new))
            .unwrap_or_else(|panic| Err(verdict(panic, group.rank(), "while it was set up")));
        replica.inspect_err(|error| group.abort(error.into()))
    }

    /// A replica ready for its first step.
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
                Some(values) => values.iter().map(|value| upload(value, &device)).collect(),
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
        let result = catch_unwind(AssertUnwindSafe(|| self.train())).unwrap_or_else(|panic| {
            Err(verdict(panic, self.collective.rank(), &format!("at step {}", self.position.global_step + 1)))
        });
        if let Err(error) = &result {
            self.collective.abort(error.into());
        }
        result.map(|()| self.model)
    }

    /// The name of a collective of the step that is under way.
    pub(super) fn key(&self, operation: Operation) -> Key {
        Key { step: self.position.global_step, micro_batch: 0, operation }
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
        self.position.running.add_step(result.tally);
        if self.collective.speaks() {
            let samples = if self.plan.report_samples { group.micro_batches.concat() } else { Vec::new() };
            (self.report)(Event::Step(StepReport {
                step: self.position.global_step,
                epoch: self.position.epoch,
                step_in_epoch: self.position.step_in_epoch,
                tally: result.tally,
                learning_rate,
                gradient_norm: result.gradient_norm,
                duration: start.elapsed(),
                skipped: self.position.loss_scale.skipped,
                samples,
            }));
        }
        Ok(result.stop)
    }
}

/// What a panic of replica `rank` means to a person, in one line; `when` says at which step.
fn verdict(panic: Box<dyn Any + Send>, rank: usize, when: &str) -> Error {
    let panic = match panic.downcast::<Broken>() {
        Ok(verdict) => return (*verdict).into(),
        Err(panic) => panic,
    };
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("no message").split_whitespace().collect::<Vec<_>>().join(" ");
    let remedy = "checkpoints written before are intact, continue with --resume latest";
    Error::Training(format!("replica {rank} panicked {when}: {text}; {remedy}"))
}
