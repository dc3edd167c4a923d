//! One replica, or one stage of it: a thread that owns a model, an optimizer and its shard of every batch.
//!
//! All workers run the same program and exchange data only in collectives and with their neighbours. This file is the loop
//! from the first step to the last; `passes.rs` are the passes of a step, `step.rs` the rest of it, `epoch.rs` the end of an
//! epoch.

use std::any::Any;
use std::collections::HashSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use burn::module::Module;

use super::accumulation::Accumulation;
use super::batches::{Batches, batches};
use super::collective::Collective;
use super::device::HostBackend;
use super::events::{EpochReport, StepReport};
use super::generation::Generation;
use super::key::{Broken, Key, Operation};
use super::learner::{Recipe, TaskLearner, UpdateRule};
use super::outcome::{Outcome, not_finite};
use super::overlap::Overlap;
use super::plan::Plan;
use super::position::{Position, StartingPoint, TrainingState};
use super::remedy::{device_panic, forget_device_panic, remedy, without_stack, words};
use super::sharding::{is_parted, shares};
use super::stage::Stage;
use super::task::{Split, Task};
use super::trainee::{Handle, Student, Trainee};
use super::world::World;
use super::writer::{Slot, Taken};
use crate::error::{Error, Result};
use crate::nn::{Weights, Which, flat, float_tensors, kernels, only, trained_parameters};
use crate::ops::{release_freed, traffic, upload};
use crate::optim::{self, WeightAverage};

/// An event for the coordinator.
#[derive(Debug)]
pub(super) enum Event {
    Step(StepReport),
    Validating {
        done: usize,
        total: usize,
    },
    Epoch(EpochReport),
    /// Of another thread until it is written.
    Checkpoint(Box<TrainingState>, Taken),
    Waiting {
        step: usize,
    },
}

/// What follows a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// The next step, or the end of the plan.
    Continue,
    /// The end of the run, as requested.
    Stop,
    /// The end of the generation.
    Part,
}

/// One replica of the model, with all it needs for training.
pub(super) struct Replica<B: HostBackend, T: Task<B>> {
    pub(super) task: Arc<T>,
    pub(super) plan: Arc<Plan>,
    /// The replicas; with several stages those of this stage.
    pub(super) collective: Arc<Collective>,
    pub(super) stage: Stage<B>,
    /// Trained tensors of the whole model.
    pub(super) tensors: usize,
    /// The places of those that this replica updates, among those of its stage, if the update is in parts.
    pub(super) own: Option<Range<usize>>,
    pub(super) device: B::Device,
    pub(super) learner: TaskLearner<B, T>,
    /// That of the learner.
    pub(super) rule: UpdateRule<B, Student<B, T>>,
    /// On the first replica of the world; in an elastic run on the first replica of each device, which others may lose.
    pub(super) average: Option<WeightAverage<B>>,
    pub(super) position: Position,
    /// The batches to train on, and the number of this replica's own samples in each.
    pub(super) batches: Batches<T::Input>,
    /// Of the last step, if it is not read yet.
    pub(super) outcome: Option<Outcome>,
    /// Of a step, until it has all of them.
    pub(super) gradients: Arc<Accumulation<B>>,
    /// Reduces gradients during the backward pass, if there are other processes.
    pub(super) overlap: Option<Overlap<B>>,
    /// Called on the first replica of the process only.
    pub(super) report: Box<dyn FnMut(Event) + Send>,
    /// For an elastic run.
    pub(super) generation: Option<Arc<dyn Generation>>,
    /// Room for a state to save.
    pub(super) slot: Slot,
}

/// Where a worker belongs.
pub(super) struct Place {
    /// The replicas of its stage.
    pub(super) collective: Arc<Collective>,
    /// All workers.
    pub(super) everyone: Arc<Collective>,
    /// Of all workers.
    pub(super) world: World,
    /// The units of the model that it computes.
    pub(super) units: Range<usize>,
    /// Room for a state to save.
    pub(super) slot: Slot,
}

/// How a replica ended.
pub(super) enum Ended<B: HostBackend, T: Task<B>> {
    /// The plan is done, or the run was asked to stop.
    Finished(Box<Replica<B, T>>),
    /// The generation is over; the replica has the state of its last whole step, and may have got the other stages' parts.
    Parted(Box<Replica<B, T>>, Option<TrainingState>),
    /// The replica's device failed; others may continue.
    Lost(String),
    /// Replicas differ after this step; the run goes back to what all agreed on.
    Discarded(usize, String),
    /// The run fails.
    Failed(Error),
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

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Makes a replica by `new`; if that fails, aborts its `groups`, so that no other replica waits for this one.
    pub(super) fn set_up(groups: [&Collective; 2], new: impl FnOnce() -> Result<Self>) -> Result<Self> {
        let replica = catch_unwind(AssertUnwindSafe(new))
            .unwrap_or_else(|panic| Err(verdict(panic, groups[0].rank(), "while it was set up")));
        replica.inspect_err(|error| groups.into_iter().for_each(|group| group.abort(error.into())))
    }

    /// A replica ready for its first step.
    pub(super) fn new(
        recipe: &Recipe<B, T>,
        plan: Arc<Plan>,
        place: Place,
        model: T::Model,
        start: &StartingPoint,
        report: Box<dyn FnMut(Event) + Send>,
        generation: Option<Arc<dyn Generation>>,
    ) -> Result<Self> {
        let Place { collective, everyone, world, units, slot } = place;
        let rank = collective.rank();
        let device = B::open(plan.world.device_of(rank))?;
        forget_device_panic(&device);
        let task = recipe.task.clone();
        let stage = Stage::new(&world, units, task.as_ref(), &model, everyone, device.clone())?;
        let tensors = trained_parameters(&model).count();
        let names: Vec<String> = float_tensors(&model).into_iter().map(|tensor| tensor.name).collect();
        let is_own = |name: &str| stage.has(name);
        let model = if stage.is_whole() { model } else { only(model, &is_own) };
        let model = model.fork(&device);
        let trained: Vec<Weights> = trained_parameters(&model).collect();
        let is_in_parts = recipe.rule.is_none() && generation.is_none() && is_parted::<B>(&plan, &collective);
        let own = is_in_parts.then(|| {
            let lengths: Vec<usize> = trained.iter().map(|tensor| tensor.shape.iter().product()).collect();
            shares(&lengths, collective.size()).swap_remove(rank)
        });
        let (learner, rule) = recipe.learner(&plan, model, start.position.global_step, own.clone());
        let model = learner.model().into_model();
        match &start.optimizer {
            Some(state) if stage.is_whole() && own.is_none() => rule.load(state, &device)?,
            Some(state) => {
                let others = own.iter().flat_map(|own| trained[..own.start].iter().chain(&trained[own.end..]));
                let others: HashSet<&str> = others.map(|tensor| &*tensor.name).collect();
                let own = state.iter().filter(|(name, _)| is_own(name) && !others.contains(optim::tensor_of(name)));
                let state = own.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
                rule.load(&state, &device)?;
            }
            None => {}
        }
        let world = &plan.world;
        let first = rank == 0 || (generation.is_some() && rank == world.shares[world.slot_of(rank)].start);
        let averaged = first && plan.optim.ema_decay > 0.0;
        let average = averaged.then(|| {
            let values = match &start.average {
                Some(values) => {
                    let own = values.iter().zip(&names).filter(|(_, name)| is_own(name));
                    own.map(|(value, _)| upload(value, &device)).collect()
                }
                None => flat(&model, Which::All),
            };
            WeightAverage::new(plan.optim.ema_decay, values)
        });
        plan.check_samples(task.as_ref())?;
        let shards = stage.shards(plan.shards(rank, &start.position));
        let batches = batches(&task, Split::Training, shards, &device)?;
        let kernels = kernels(&model);
        let gradients = Arc::new(Accumulation::new(&kernels));
        let overlap = collective
            .is_distributed()
            .then(|| Overlap::new(kernels, collective.clone(), plan.reduce_precision))
            .transpose()?;
        Ok(Self {
            position: start.position.clone(),
            task,
            plan,
            collective,
            stage,
            tensors,
            own,
            device,
            learner,
            rule,
            average,
            batches,
            outcome: None,
            gradients,
            overlap,
            report,
            generation,
            slot,
        })
    }

    pub(super) fn model(&self) -> T::Model {
        self.learner.model().into_model()
    }

    pub(super) fn set_model(&mut self, model: T::Model) {
        self.learner.load_model(Trainee::new(model, Handle(self.task.clone())).into_record());
    }

    /// Trains to the end of the plan, a stop, or the end of the generation.
    fn train(&mut self) -> Result<Flow> {
        let mut begins = true;
        // Of the whole model, which was here, a stage keeps its part.
        self.release();
        while !self.plan.is_over(self.position.epoch, self.position.best) {
            while self.position.step_in_epoch < self.plan.sampler.steps_per_epoch()
                && self.position.global_step < self.plan.last_step
            {
                let flow = self.advance()?;
                if std::mem::take(&mut begins) {
                    self.release();
                }
                let every = self.plan.save_every_steps;
                let due = every > 0 && self.position.global_step.is_multiple_of(every);
                if due || flow != Flow::Continue {
                    self.settle_outcome()?;
                }
                if flow == Flow::Stop || (due && self.position.global_step < self.plan.last_step) {
                    self.save(false, None)?;
                } else if self.is_check_due() {
                    self.check()?;
                }
                if flow != Flow::Continue {
                    return Ok(flow);
                }
            }
            let finished = self.position.step_in_epoch >= self.plan.sampler.steps_per_epoch();
            self.settle_outcome()?;
            self.close_epoch(finished)?;
            if self.position.global_step >= self.plan.last_step {
                break;
            }
        }
        Ok(Flow::Continue)
    }

    /// Gives back what only the start needed.
    fn release(&self) {
        if self.stage.everyone.is_local_leader() {
            release_freed();
        }
    }

    /// Trains and returns how it ended: a panic, or the unwinding of a broken collective, becomes an error, and every
    /// error aborts the group, so that no other replica waits for this one.
    pub(super) fn run(mut self) -> Ended<B, T> {
        let (error, panicked) = match catch_unwind(AssertUnwindSafe(|| self.train())) {
            Ok(Ok(Flow::Part)) => {
                // If a process is lost now, each one keeps what it has.
                let whole = catch_unwind(AssertUnwindSafe(|| self.hand_over())).ok().and_then(Result::ok).flatten();
                return Ended::Parted(Box::new(self), whole);
            }
            Ok(Ok(_)) => return Ended::Finished(Box::new(self)),
            Ok(Err(error)) => (error, false),
            Err(panic) => {
                let panicked = !panic.is::<Broken>();
                let when = format!("at step {}", self.position.global_step + 1);
                // What the device says goes before what its caller made of it.
                let device = device_panic(&self.device).filter(|_| panicked);
                let panic = device.map_or(panic, |words| Box::new(words));
                (verdict(panic, self.collective.rank(), &when), panicked)
            }
        };
        let may_change = self.generation.is_some();
        if let Error::Difference(how) = &error
            && may_change
            && self.plan.roll_back
        {
            return Ended::Discarded(self.position.global_step, how.clone());
        }
        // The other replicas of this process end as after the loss of another process.
        let lost = (may_change && panicked).then(|| error.to_string());
        let reason = lost.clone().map_or_else(|| (&error).into(), Broken::Peer);
        [&self.collective, &self.stage.everyone].into_iter().for_each(|group| group.abort(reason.clone()));
        match (lost, error) {
            (Some(how), _) => Ended::Lost(how),
            (None, Error::PeerLost(_)) if may_change => Ended::Parted(Box::new(self), None),
            (None, error) => Ended::Failed(error),
        }
    }

    /// The key of a collective of the current step.
    pub(super) fn key(&self, operation: Operation) -> Key {
        Key { step: self.position.global_step, micro_batch: 0, operation }
    }

    /// One optimizer step.
    fn advance(&mut self) -> Result<Flow> {
        let (start, copied) = (Instant::now(), traffic());
        let group = self.plan.sampler.group(self.position.epoch, self.position.step_in_epoch);
        self.learner.lr_step();
        let learning_rate = self.learner.lr_current();
        // The update multiplies by the learning rate in f32.
        if !(learning_rate as f32).is_finite() {
            return Err(not_finite("the learning rate", None, self.position.global_step + 1));
        }
        let named = if self.plan.report_samples { group.micro_batches() } else { 0 };
        let report = StepReport {
            step: self.position.global_step + 1,
            epoch: self.position.epoch,
            step_in_epoch: self.position.step_in_epoch + 1,
            learning_rate,
            samples: (0..named).flat_map(|micro| group.ids(micro)).collect(),
            ..StepReport::default()
        };
        let (mut report, flow) = self.step(&group, report)?;
        self.position.global_step += 1;
        self.position.step_in_epoch += 1;
        let of_this_step = self.outcome.as_mut().map(|outcome| &mut outcome.report).or(report.as_mut());
        if let Some(report) = of_this_step {
            report.duration = start.elapsed();
            report.traffic = (!B::is_processor()).then(|| traffic().since(copied));
        }
        report.into_iter().for_each(|report| self.account(report));
        Ok(flow)
    }

    /// Adds a step to the sums of the epoch, and reports it.
    pub(super) fn account(&mut self, report: StepReport) {
        self.position.samples_seen += report.counts.samples as u64;
        self.position.running.add_step(report.counts);
        if self.stage.everyone.is_local_leader() {
            (self.report)(Event::Step(StepReport { skipped: self.position.loss_scale.skipped, ..report }));
        }
    }
}

/// The error for a panic of replica `rank`, in one line; `when` says at which step.
pub(super) fn verdict(panic: Box<dyn Any + Send>, rank: usize, when: &str) -> Error {
    let panic = match panic.downcast::<Broken>() {
        Ok(verdict) => return (*verdict).into(),
        Err(panic) => panic,
    };
    let text = words(&*panic);
    Error::Training(format!("replica {rank} panicked {when}: {}; {}", without_stack(text), remedy(text)))
}
