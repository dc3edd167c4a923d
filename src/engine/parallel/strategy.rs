//! Kiln's learning strategy for Burn's learner: one thread per replica, and the caller's as coordinator.
//!
//! Each replica has its own learner, which steps model, optimizer and schedule. Burn's learner provides the initial
//! model, the event processor and the interrupter. Its loaders have neither epochs nor positions and its checkpointers
//! save only at epochs, so Kiln does both itself. An elastic run goes from one generation to the next.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use burn::backend::Autodiff;
use burn::data::dataloader::Progress;
use burn::optim::Optimizer;
use burn::optim::lr_scheduler::LrScheduler;
use burn_train::{
    EventProcessorTraining, Interrupter, Learner, LearnerEvent, LearningComponentsTypes, SupervisedLearningStrategy,
    SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, TrainingItem, ValidLoader,
};
use kiln_system::{Error, Result};
use parking_lot::{Mutex, MutexGuard};

use super::collective::local_group;
use super::coordinator::{Coordinator, Message};
use super::device::HostBackend;
use super::ending::{GenerationEnd, kept};
use super::events::{EpochReport, Observer, StepReport};
use super::generation::{Assignment, Fixed, Generation, Held, Membership};
use super::learner::{LearningRate, Recipe, TaskLearner, UpdateRule};
use super::plan::Plan;
use super::position::{Position, StartingPoint};
use super::processes::Processes;
use super::replica::{Ended, Event, Replica};
use super::set_up::Worker;
use super::stage;
use super::task::{Evaluated, Task};
use super::task_model::{EvaluationOutput, Handle, MicroOutput, TaskModel, TrainingModel};
use super::writer::Slot;
use crate::nn::{load_state, only};

/// What replicas need to start: for a whole run, or for one generation.
struct Start<M> {
    plan: Arc<Plan>,
    model: M,
    start: Arc<StartingPoint>,
    processes: Option<Processes>,
    generation: Arc<dyn Generation>,
}

/// Data-parallel training on a task, run once.
pub struct DataParallel<B: HostBackend, T: Task<B>> {
    recipe: Arc<Recipe<B, T>>,
    /// What it follows.
    pub plan: Arc<Plan>,
    /// Until the run starts.
    start: Mutex<StartingPoint>,
    timeout: Duration,
    /// The other processes, if there are any.
    processes: Option<Processes>,
    /// For an elastic run.
    membership: Option<Box<dyn Membership>>,
    observer: Mutex<Box<dyn Observer>>,
    /// Kept here, since Burn's strategies cannot return an error.
    result: Mutex<Result<()>>,
}

impl<B: HostBackend, T: Task<B>> DataParallel<B, T> {
    /// A strategy that trains on `task` and follows `plan` from `start`, with the update rule and the schedule of the
    /// plan; `timeout` limits every wait of one replica for another.
    pub fn new(
        task: Arc<T>,
        plan: Arc<Plan>,
        start: StartingPoint,
        timeout: Duration,
        observer: Box<dyn Observer>,
    ) -> Self {
        let (observer, result) = (Mutex::new(observer), Mutex::new(Ok(())));
        let recipe = Recipe { task, rule: None, schedule: LearningRate::of_plan(&plan) };
        let (recipe, start) = (Arc::new(recipe), Mutex::new(start));
        Self { recipe, plan, start, timeout, processes: None, membership: None, observer, result }
    }

    /// Uses any optimizer and scheduler of Burn instead, both before their first step. They step together.
    pub fn by(
        mut self,
        optimizer: impl Optimizer<TrainingModel<B, T>, Autodiff<B>> + 'static,
        schedule: impl LrScheduler + 'static,
    ) -> Self {
        let (task, rule) = (self.recipe.task.clone(), Some(UpdateRule::of(optimizer)));
        self.recipe = Arc::new(Recipe { task, rule, schedule: LearningRate::of(schedule) });
        self
    }

    /// Trains together with other processes, which follow the same plan; the plan's world says which replicas are here.
    pub fn with(self, processes: Option<Processes>) -> Self {
        Self { processes, ..self }
    }

    /// Trains with changing devices and processes: `membership` gives placement and starting point of each generation.
    pub fn elastic(self, membership: Box<dyn Membership>) -> Self {
        Self { membership: Some(membership), ..self }
    }

    /// Burn's learner, with `model`, optimizer and schedule.
    pub fn learner(&self, model: T::Model) -> TaskLearner<B, T> {
        self.recipe.learner(&self.plan, model, &Position::default(), None).0
    }

    /// The result of the run, after the learner has returned.
    pub fn take_result(&self) -> Result<()> {
        std::mem::replace(&mut *self.result.lock(), Ok(()))
    }

    /// Trains with fixed membership.
    fn train_once(
        &self,
        model: T::Model,
        interrupter: &Interrupter,
        mut to_learner: impl FnMut(&Event),
    ) -> Result<T::Model> {
        let start = std::mem::take(&mut *self.start.lock());
        let (plan, start) = (self.plan.clone(), Arc::new(start));
        let (processes, generation) = (self.processes.clone(), Arc::new(Fixed));
        let start = Start { plan: plan.clone(), model, start, processes, generation };
        let messages = self.spawn(&start)?;
        let model = start.model.clone();
        // With the state that a run goes on from, which the workers have taken.
        drop(start);
        let world = &plan.world;
        let whole = world.has_all_stages().then_some(model);
        match self.coordinate(&messages, &plan, interrupter, &mut to_learner)? {
            GenerationEnd::Finished(mut replicas) if !replicas.is_empty() => {
                let Some(blank) = whole else { return Ok(replicas.swap_remove(0).model()) };
                put_together(&replicas, blank)
            }
            _ => Err(Error::Training("the replicas ended without a result".into())),
        }
    }

    /// Trains in one generation after the other, until the run is complete or this process has left it.
    fn train_elastic(
        &self,
        membership: &dyn Membership,
        initial: T::Model,
        interrupter: &Interrupter,
        mut to_learner: impl FnMut(&Event),
    ) -> Result<T::Model> {
        let (mut held, mut last) = (None, initial.clone());
        loop {
            let assignment = membership.next(held.take(), self.observer().as_mut())?;
            let Some(Assignment { plan, processes, generation, state }) = assignment else { break };
            let (model, start) = match &state {
                Some(state) => StartingPoint::restore(initial.clone(), state, "the state that the run goes on from")?,
                None => (initial.clone(), StartingPoint::default()),
            };
            drop(state);
            let start = Start { plan, model, start: Arc::new(start), processes, generation };
            let messages = self.spawn(&start)?;
            let plan = start.plan.clone();
            drop(start);
            match self.coordinate(&messages, &plan, interrupter, &mut to_learner)? {
                GenerationEnd::Finished(mut replicas) => {
                    let world = &plan.world;
                    if world.has_all_stages() {
                        last = put_together(&replicas, initial.clone())?;
                    } else if let Some(replica) = replicas.first() {
                        last = replica.model();
                    }
                    if membership.complete()? {
                        break;
                    }
                    held = Some(Held::of(kept(&mut replicas, world)));
                }
                GenerationEnd::Over(over) => held = Some(*over),
            }
        }
        Ok(last)
    }

    fn observer(&self) -> MutexGuard<'_, Box<dyn Observer>> {
        self.observer.lock()
    }

    /// Starts a thread per worker.
    fn spawn(&self, start: &Start<T::Model>) -> Result<Receiver<Message<B, T>>> {
        let (sender, receiver) = channel();
        let world = &start.plan.world;
        let costs: Vec<f64> = self.recipe.task.units().iter().map(|unit| unit.cost).collect();
        let cut = stage::cut(&costs, world.stages, &start.plan.split_points)?;
        if world.stages > 1 && self.recipe.rule.is_some() {
            let rule = "the state of an optimizer of Burn cannot be put together from stages";
            return Err(Error::usage(format!("{rule}; train in one stage, or with the update rule of the plan")));
        }
        if start.plan.grad_checkpointing && costs.len() == 1 {
            let rule = "the activations of a model of one unit are needed at once";
            return Err(Error::usage(format!("{rule}; train without --grad-checkpointing, or give the task units")));
        }
        if start.plan.shard_optimizer && (self.recipe.rule.is_some() || start.generation.is_elastic()) {
            let rule = "a sharded optimizer is one of the plan's, and all of its processes stay to the end";
            return Err(Error::usage(format!("{rule}; train without --shard-optimizer")));
        }
        let everyone = local_group(world.size * world.stages, start.processes.clone(), self.timeout);
        let (mut workers, slot) = (everyone.iter().cloned(), Slot::default());
        for number in world.stages_here() {
            let Some(plan) = start.plan.of_stage(number).map(Arc::new) else { continue };
            let others = start.processes.as_ref().and_then(|processes| processes.of_stage(number));
            for (collective, everyone) in local_group(world.size, others, self.timeout).into_iter().zip(&mut workers) {
                let (world, cut, slot) = (world.clone(), cut.clone(), slot.clone());
                let worker = Worker { collective, everyone, world, cut, slot };
                self.spawn_worker(start, plan.clone(), worker, sender.clone())?;
            }
        }
        Ok(receiver)
    }

    fn spawn_worker(
        &self,
        start: &Start<T::Model>,
        plan: Arc<Plan>,
        worker: Worker,
        sender: Sender<Message<B, T>>,
    ) -> Result<()> {
        let (number, here) = (worker.everyone.rank(), worker.everyone.here());
        let (recipe, generation) = (self.recipe.clone(), start.generation.clone());
        let (model, start) = (start.model.clone(), start.start.clone());
        let threads = plan.threads;
        let work = move || {
            let events = sender.clone();
            // Fails only if the coordinator has ended.
            let report = Box::new(move |event| drop(events.send(Message::Event(event))));
            let groups = [worker.collective.clone(), worker.everyone.clone()];
            let new = || Replica::<B, T>::new(&recipe, plan, worker, model, &start, report, generation);
            let groups = [groups[0].as_ref(), groups[1].as_ref()];
            let ended = Replica::set_up(groups, new).map_or_else(Ended::Failed, Replica::run);
            drop(sender.send(Message::Ended(number, ended)));
        };
        let thread = std::thread::Builder::new().name(format!("replica-{number}"));
        let started = thread.spawn(move || B::on_threads(threads, here, work));
        started.map(drop).map_err(|reason| {
            Error::Training(format!(
                "cannot start the thread of replica {number}: {reason}; use a smaller --world-size"
            ))
        })
    }

    fn coordinate(
        &self,
        messages: &Receiver<Message<B, T>>,
        plan: &Plan,
        interrupter: &Interrupter,
        to_learner: &mut impl FnMut(&Event),
    ) -> Result<GenerationEnd<B, T>> {
        let observer = &mut **self.observer();
        Coordinator { plan, timeout: self.timeout, interrupter, observer }.run(messages, to_learner)
    }

    fn progress(&self, epoch: usize) -> Progress {
        Progress::new(epoch + 1, self.plan.epochs)
    }

    fn step_item(&self, report: &StepReport) -> TrainingItem<MicroOutput<B, T::Outputs>> {
        let (sums, statistics) = Default::default();
        let item = MicroOutput { sums, counts: report.counts, statistics, gradient: None, outputs: None };
        let samples = self.plan.sampler.len();
        let done = (report.step_in_epoch * samples).div_ceil(self.plan.sampler.steps_per_epoch());
        let progress = Progress::new(done.min(samples), samples);
        TrainingItem::new(item, progress, self.progress(report.epoch), Some(report.step), Some(report.learning_rate))
    }

    fn epoch_item(&self, report: &EpochReport) -> TrainingItem<EvaluationOutput<B>> {
        let item = EvaluationOutput { results: None, counts: report.validation };
        let samples = report.validation.samples;
        let progress = Progress::new(samples, samples);
        TrainingItem::new(item, progress, self.progress(report.epoch), Some(report.step), None)
    }
}

/// The model whose stages are all here; where they are not, the others' weights are in the checkpoint. Of replicas that
/// part the update one has the weights, so all are asked.
fn put_together<B: HostBackend, T: Task<B>>(replicas: &[Replica<B, T>], blank: T::Model) -> Result<T::Model> {
    let parts = replicas.iter().filter_map(Replica::state).flat_map(|state| state.weights);
    load_state(blank, &parts.collect(), "the stages")
}

impl<B, T, LC> SupervisedLearningStrategy<LC> for DataParallel<B, T>
where
    B: HostBackend,
    T: Task<B>,
    LC: LearningComponentsTypes<
            Backend = Autodiff<B>,
            TrainingModel = TrainingModel<B, T>,
            InferenceModel = TaskModel<B, Evaluated<B, T>, Handle<T>>,
        >,
{
    fn fit(
        &self,
        mut components: TrainingComponents<LC>,
        learner: Learner<LC>,
        _train: TrainLoader<LC>,
        _valid: ValidLoader<LC>,
        _starting_epoch: usize,
    ) -> (LC::TrainingModel, SupervisedTrainingEventProcessor<LC>) {
        let initial = learner.model().into_model();
        drop(learner);
        // After an error the result counts, not the model.
        let nothing = only(initial.clone(), &|_| false);
        let processor = &mut components.event_processor;
        let to_learner = |event: &Event| match event {
            Event::Step(report) => processor.process_train(LearnerEvent::ProcessedItem(self.step_item(report))),
            Event::Epoch(report) => {
                processor.process_train(LearnerEvent::EndEpoch(report.epoch + 1));
                processor.process_valid(LearnerEvent::ProcessedItem(self.epoch_item(report)));
                processor.process_valid(LearnerEvent::EndEpoch(report.epoch + 1));
            }
            Event::Validating { .. } | Event::Checkpoint(..) | Event::Waiting { .. } => {}
        };
        let interrupter = &components.interrupter;
        let result = match &self.membership {
            None => self.train_once(initial, interrupter, to_learner),
            Some(membership) => self.train_elastic(membership.as_ref(), initial, interrupter, to_learner),
        };
        let (model, result) = match result {
            Ok(model) => (model, Ok(())),
            Err(error) => (nothing, Err(error)),
        };
        *self.result.lock() = result;
        (TaskModel::new(model, Handle(self.recipe.task.clone())), components.event_processor)
    }
}
