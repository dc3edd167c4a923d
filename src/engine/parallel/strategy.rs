//! Kiln's learning strategy for Burn's learner: one thread per replica, and the caller's as coordinator.
//!
//! Each replica has its own learner, which steps model, optimizer and schedule. The learner that Burn trains provides
//! the initial model. Burn's loaders have neither epochs nor positions and its checkpointers save only at epochs, so
//! Kiln does both itself. An elastic run goes from one generation to the next.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use burn::backend::Autodiff;
use burn::optim::Optimizer;
use burn::optim::lr_scheduler::LrScheduler;
use burn_train::{
    Learner, SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, ValidLoader,
};
use kiln_system::{Error, Result};
use parking_lot::Mutex;

use super::collective::local_group;
use super::coordinator::{Coordinator, Message};
use super::ending::{GenerationEnd, kept};
use super::generation::{Assignment, Fixed, GenerationResult, Membership};
use super::learner::{Components, LearningRate, TaskLearner, UpdateRule};
use super::position::StartingPoint;
use super::set_up::Worker;
use super::stage;
use super::{
    Ended, Generation, Handle, HostBackend, Observer, Plan, Position, Processes, Recipe, Replica, Slot, Task,
    TaskModel, TrainingModel,
};
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

    pub fn learner(&self, model: T::Model) -> TaskLearner<B, T> {
        self.recipe.learner(&self.plan, model, &Position::default(), None).0
    }

    /// The result of the run, after the learner has returned.
    pub fn take_result(&self) -> Result<()> {
        std::mem::replace(&mut *self.result.lock(), Ok(()))
    }

    /// Trains with fixed membership.
    fn train_once(&self, model: T::Model) -> Result<T::Model> {
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
        match self.coordinate(&messages, &plan)? {
            GenerationEnd::Finished(mut replicas) if !replicas.is_empty() => {
                let Some(blank) = whole else { return Ok(replicas.swap_remove(0).model()) };
                put_together(&replicas, blank)
            }
            _ => Err(Error::Training("the replicas ended without a result".into())),
        }
    }

    /// Trains in one generation after the other, until the run is complete or this process has left it.
    fn train_elastic(&self, membership: &dyn Membership, initial: T::Model) -> Result<T::Model> {
        let (mut held, mut last) = (None, initial.clone());
        loop {
            let assignment = membership.next(held.take(), self.observer.lock().as_mut())?;
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
            match self.coordinate(&messages, &plan)? {
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
                    held = Some(GenerationResult::of(kept(&mut replicas, world)));
                }
                GenerationEnd::Over(over) => held = Some(*over),
            }
        }
        Ok(last)
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
        let (number, here) = (worker.everyone.rank(), worker.everyone.threads.ranks.len());
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

    fn coordinate(&self, messages: &Receiver<Message<B, T>>, plan: &Plan) -> Result<GenerationEnd<B, T>> {
        Coordinator { plan, timeout: self.timeout, observer: &mut **self.observer.lock() }.run(messages)
    }
}

/// The model whose stages are all here; where they are not, the others' weights are in the checkpoint. Of replicas that
/// part the update one has the weights, so all are asked.
fn put_together<B: HostBackend, T: Task<B>>(replicas: &[Replica<B, T>], blank: T::Model) -> Result<T::Model> {
    let parts = replicas.iter().filter_map(Replica::state).flat_map(|state| state.weights);
    load_state(blank, &parts.collect(), "the stages")
}

impl<B: HostBackend, T: Task<B>> SupervisedLearningStrategy<Components<B, T>> for DataParallel<B, T> {
    fn fit(
        &self,
        components: TrainingComponents<Components<B, T>>,
        learner: Learner<Components<B, T>>,
        _train: TrainLoader<Components<B, T>>,
        _valid: ValidLoader<Components<B, T>>,
        _starting_epoch: usize,
    ) -> (TrainingModel<B, T>, SupervisedTrainingEventProcessor<Components<B, T>>) {
        let initial = learner.model().into_model();
        drop(learner);
        // After an error the result counts, not the model.
        let nothing = only(initial.clone(), &|_| false);
        let result = match &self.membership {
            None => self.train_once(initial),
            Some(membership) => self.train_elastic(membership.as_ref(), initial),
        };
        let (model, result) = match result {
            Ok(model) => (model, Ok(())),
            Err(error) => (nothing, Err(error)),
        };
        *self.result.lock() = result;
        (TaskModel::new(model, Handle(self.recipe.task.clone())), components.event_processor)
    }
}
