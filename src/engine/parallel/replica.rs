//! One replica, or one stage of it: a thread that owns a model, an optimizer and its shard of every batch.
//!
//! All workers run the same program and exchange data only in collectives and with their neighbours. `set_up.rs` makes
//! one, and this file is its loop from the first step to the last; `passes.rs` are the passes of a step, `step.rs` the
//! rest of it, `epoch.rs` the end of an epoch.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use burn::module::Module;
use kiln_ops::{release_freed, traffic};
use kiln_system::{Error, Result};

use super::accumulation::Accumulation;
use super::batches::Batches;
use super::events::EpochReport;
use super::learner::{TaskLearner, UpdateRule};
use super::micro_batch_group::Agreed;
use super::outcome::{Reading, not_finite};
use super::recording::Recording;
use super::reduction::Reduction;
use super::remedy::{device_panic, remedy, without_stack, words};
use super::work::Measurement;
use super::writer::Taken;
use super::{
    Broken, Collective, Generation, Handle, HostBackend, Key, Operation, Plan, Position, Slot, Stage, StepReport, Task,
    TaskModel, TrainingModel, TrainingState, Work,
};
use crate::optim::{Arenas, WeightAverage};

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// The next step, or the end of the plan.
    Continue,
    /// The same after saving, as requested.
    Save,
    /// The end of the run, as requested.
    Stop,
    Part,
}

pub(super) struct Replica<B: HostBackend, T: Task<B>> {
    pub(super) task: Arc<T>,
    pub(super) plan: Arc<Plan>,
    /// The replicas; with several stages those of this stage.
    pub(super) collective: Arc<Collective>,
    pub(super) stage: Stage<B>,
    /// Trained tensors of the whole model.
    pub(super) tensors: usize,
    pub(super) device: B::Device,
    pub(super) learner: TaskLearner<B, T>,
    pub(super) rule: UpdateRule<B, TrainingModel<B, T>>,
    /// On the first replica of the world; in an elastic run on the first replica of each device, which others may lose.
    pub(super) average: Option<WeightAverage<B>>,
    pub(super) position: Position,
    /// The batches to train on, and the number of this replica's own samples in each.
    pub(super) batches: Batches<T::Input>,
    /// The next one, if it was taken from them before its step.
    pub(super) next: Option<(T::Input, usize)>,
    /// If steps are recorded.
    pub(super) recording: Option<Recording<B, T>>,
    pub(super) reading: Reading,
    /// Of the last step, if it was measured, until the others are told.
    pub(super) work: Option<Work>,
    /// Whether the next step is measured, and when one was last. The first one is not: it compiles or tries kernels.
    pub(super) measures: bool,
    pub(super) measured: Instant,
    /// Of a step, until it has all of them.
    pub(super) gradients: Arc<Accumulation<B>>,
    pub(super) reduction: Reduction<B>,
    /// The vectors in which the optimizer takes gradients, if it does.
    pub(super) arenas: Option<Arenas>,
    /// What replicas have agreed on for synchronised batch-norm.
    pub(super) agreed: Agreed,
    /// Called on the first replica of the process only.
    pub(super) report: Box<dyn FnMut(Event) + Send>,
    pub(super) generation: Arc<dyn Generation>,
    pub(super) slot: Slot,
}

pub(super) enum Ended<B: HostBackend, T: Task<B>> {
    /// The plan is done, or the run was asked to stop.
    Finished(Box<Replica<B, T>>),
    /// The generation is over; the replica has the state of its last whole step, and may have got the other stages'
    /// parts.
    Parted(Box<Replica<B, T>>, Option<Box<TrainingState>>),
    /// The replica's device failed; others may continue.
    Lost(String),
    /// Replicas differ after this step; the run goes back to what all agreed on.
    Discarded(usize, String),
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
    pub(super) fn model(&self) -> T::Model {
        self.learner.model().into_model()
    }

    pub(super) fn set_model(&mut self, model: T::Model) {
        self.learner.load_model(TaskModel::new(model, Handle(self.task.clone())).into_record());
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
                let due = flow == Flow::Save || (every > 0 && self.position.global_step.is_multiple_of(every));
                if due || flow != Flow::Continue {
                    self.settle_outcome()?;
                }
                if flow == Flow::Stop || (due && self.position.global_step < self.plan.last_step) {
                    self.save(false, None)?;
                } else if self.is_check_due() {
                    self.check()?;
                }
                match flow {
                    Flow::Continue => {}
                    Flow::Save => self.plan.stop.saved(),
                    Flow::Stop | Flow::Part => return Ok(flow),
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
                return Ended::Parted(Box::new(self), whole.map(Box::new));
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
        let may_change = self.generation.is_elastic();
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

    /// Whether this worker has the whole gradient, and updates all weights.
    pub(super) fn has_all(&self) -> bool {
        self.stage.is_whole() && self.reduction.own.is_none()
    }

    /// The key of a collective of the current step.
    pub(super) fn key(&self, operation: Operation) -> Key {
        Key { step: self.position.global_step, micro_batch: 0, operation }
    }

    fn advance(&mut self) -> Result<Flow> {
        let measurement = (self.measures && self.stage.everyone.size() > 1).then(|| {
            self.measured = Instant::now();
            let device = self.device.clone();
            // What the device says of an error comes with the next value that is read.
            let settle = (!B::is_processor()).then(|| Box::new(move || drop(B::sync(&device))) as Box<dyn Fn()>);
            // Between the replicas of its own stage, and between stages.
            let mut collectives = vec![self.collective.clone()];
            collectives.extend((self.plan.world.stages > 1).then(|| self.stage.everyone.clone()));
            let sent = Box::new(move || collectives.iter().flat_map(|it| it.sending()).collect());
            Measurement::begin(self.plan.world.device_of(self.collective.rank()), settle, Some(sent))
        });
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
        let (mut report, flow) = match self.recording.take() {
            Some(mut recording) => {
                let done = self.recorded_step(&mut recording, &group, report);
                self.recording = Some(recording);
                done?
            }
            None => self.step(&group, report)?,
        };
        self.work = measurement.map(Measurement::end);
        self.position.global_step += 1;
        self.position.step_in_epoch += 1;
        let of_this_step = self.reading.unread.as_mut().map(|outcome| &mut outcome.report).or(report.as_mut());
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
