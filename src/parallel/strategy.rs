//! Kiln's learning strategy for Burn's learner: one thread per replica, one coordinator.
//!
//! Burn gives the model, the event processor (metrics and terminal interface) and the interrupter. Optimizer, schedule,
//! data order and checkpoints are Kiln's own, because the learner's are private or inexact on resume. The coordinator
//! is the thread that called the learner; it hears from the first replica and talks to the outside, so no file or
//! terminal ever holds up a replica for longer than the channel's depth.

use std::marker::PhantomData;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn::backend::Autodiff;
use burn::data::dataloader::Progress;
use burn::train::{
    EventProcessorTraining, Interrupter, Learner, LearnerEvent, LearningComponentsTypes, SupervisedLearningStrategy,
    SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, TrainingItem, ValidLoader,
};

use super::collective::Collective;
use super::device::HostBackend;
use super::events::{EpochReport, Observer, StepReport};
use super::local::{local_group, spanning_group};
use super::plan::Plan;
use super::processes::Processes;
use super::replica::{Event, Replica, ReplicaModel, StartingPoint};
use crate::error::{Error, Result};
use crate::model::TrainStepOutput;
use crate::stop::Reason;

/// Reports that may wait for the coordinator before the first replica does.
const DEPTH: usize = 16;
/// How long replicas may take to notice that one of them has failed, before they are left behind.
const GRACE: Duration = Duration::from_secs(5);

/// What replicas send to the coordinator.
enum Message<M> {
    Event(Event),
    Ended(Result<M>),
}

/// Data-parallel training of a model on backend `B`, run once.
pub struct DataParallel<B: HostBackend> {
    plan: Arc<Plan>,
    start: StartingPoint,
    timeout: Duration,
    /// The other processes, if there are any.
    processes: Option<Processes>,
    observer: Mutex<Box<dyn Observer>>,
    /// Burn's strategies cannot fail, so the result waits here.
    result: Mutex<Result<()>>,
    backend: PhantomData<fn() -> B>,
}

impl<B: HostBackend> DataParallel<B> {
    /// A strategy that follows `plan` from `start`; `timeout` bounds every wait of one replica for another.
    pub fn new(plan: Arc<Plan>, start: StartingPoint, timeout: Duration, observer: Box<dyn Observer>) -> Self {
        let result = Mutex::new(Ok(()));
        Self { plan, start, timeout, processes: None, observer: Mutex::new(observer), result, backend: PhantomData }
    }

    /// The same together with other processes, which follow the same plan; the plan's world says which replicas are
    /// here.
    pub fn with(self, processes: Option<Processes>) -> Self {
        Self { processes, ..self }
    }

    /// What became of the run; to be asked after the learner has returned.
    pub fn take_result(&self) -> Result<()> {
        std::mem::replace(&mut *self.result.lock().unwrap_or_else(PoisonError::into_inner), Ok(()))
    }

    /// Starts a thread per replica.
    fn spawn<M: ReplicaModel<B>>(&self, model: &M) -> Result<Receiver<Message<M>>> {
        let (sender, receiver) = sync_channel(DEPTH);
        let group = match &self.processes {
            None => local_group(self.plan.world.size(), self.timeout),
            Some(processes) => spanning_group(processes.clone(), self.timeout),
        };
        let here = group.len();
        for collective in group {
            let rank = collective.rank();
            let (plan, start, model) = (self.plan.clone(), self.start.clone(), model.clone());
            let sender: SyncSender<Message<M>> = sender.clone();
            let work = move || {
                B::share_threads(plan.threads, here);
                let events = sender.clone();
                // A coordinator that is gone has nothing left to learn.
                let report = Box::new(move |event| drop(events.send(Message::Event(event))));
                let group = collective.clone();
                let new = || Replica::<B, M>::new(plan, collective, model, &start, report);
                let result = Replica::set_up(group.as_ref(), new).and_then(Replica::run);
                drop(sender.send(Message::Ended(result)));
            };
            let thread = std::thread::Builder::new().name(format!("replica-{rank}"));
            thread.spawn(work).map_err(|reason| {
                Error::Training(format!(
                    "cannot start the thread of replica {rank}: {reason}; use a smaller --world-size"
                ))
            })?;
        }
        Ok(receiver)
    }

    /// Passes on what replicas report until all have ended, or one has failed and the others had time to notice.
    fn coordinate<M>(
        &self,
        messages: &Receiver<Message<M>>,
        interrupter: &Interrupter,
        mut to_learner: impl FnMut(&Event),
    ) -> Result<M> {
        let mut observer = self.observer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut model = None;
        let mut failure: Option<(Error, Instant)> = None;
        for _ in self.plan.world.hosted() {
            loop {
                let message = match &failure {
                    None => messages.recv().ok(),
                    Some((_, deadline)) => {
                        messages.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
                    }
                };
                match message {
                    Some(Message::Event(event)) => {
                        to_learner(&event);
                        if let Err(error) = self.observe(observer.as_mut(), event) {
                            self.plan.stop.request(Reason::Failure(error.to_string()));
                            // The replicas are well: they stop together at the end of their step.
                            failure.get_or_insert((error, Instant::now() + self.timeout + GRACE));
                        }
                        if interrupter.should_stop() {
                            self.plan.stop.request(Reason::Signal(libc::SIGINT));
                        }
                        continue;
                    }
                    Some(Message::Ended(Ok(done))) => model = Some(done),
                    Some(Message::Ended(Err(error))) => drop(failure.get_or_insert((error, Instant::now() + GRACE))),
                    None => {}
                }
                break;
            }
        }
        match (failure, model) {
            (Some((error, _)), _) => Err(error),
            (None, Some(model)) => Ok(model),
            (None, None) => Err(Error::Training("the replicas ended without a result".into())),
        }
    }

    fn observe(&self, observer: &mut dyn Observer, event: Event) -> Result<()> {
        match event {
            Event::Step(report) => observer.step(&report),
            Event::Validating { done, total } => {
                observer.validating(done, total);
                Ok(())
            }
            Event::Epoch(report) => observer.epoch(&report),
            Event::Checkpoint(state) => observer.checkpoint(*state),
        }
    }

    fn epochs(&self, epoch: usize) -> Progress {
        Progress::new(epoch + 1, self.plan.epochs)
    }

    fn step_item(&self, report: &StepReport) -> TrainingItem<TrainStepOutput<Autodiff<B>>> {
        let item = TrainStepOutput { tally: report.tally, ..TrainStepOutput::default() };
        let samples = self.plan.train.len();
        let done = (report.step_in_epoch * samples).div_ceil(self.plan.sampler.steps_per_epoch());
        let progress = Progress::new(done.min(samples), samples);
        TrainingItem::new(item, progress, self.epochs(report.epoch), Some(report.step), Some(report.learning_rate))
    }

    fn epoch_item(&self, report: &EpochReport) -> TrainingItem<crate::model::Tally> {
        let samples = report.validation.samples;
        let progress = Progress::new(samples, samples);
        TrainingItem::new(report.validation, progress, self.epochs(report.epoch), Some(report.step), None)
    }
}

impl<B, M, LC> SupervisedLearningStrategy<LC> for DataParallel<B>
where
    B: HostBackend,
    M: ReplicaModel<B>,
    LC: LearningComponentsTypes<Backend = Autodiff<B>, TrainingModel = M, InferenceModel = M::InnerModule>,
{
    fn fit(
        &self,
        mut components: TrainingComponents<LC>,
        learner: Learner<LC>,
        _train: TrainLoader<LC>,
        _valid: ValidLoader<LC>,
        _starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<LC>) {
        let initial: M = learner.model();
        let processor = &mut components.event_processor;
        let to_learner = |event: &Event| match event {
            Event::Step(report) => processor.process_train(LearnerEvent::ProcessedItem(self.step_item(report))),
            Event::Epoch(report) => {
                processor.process_train(LearnerEvent::EndEpoch(report.epoch + 1));
                processor.process_valid(LearnerEvent::ProcessedItem(self.epoch_item(report)));
                processor.process_valid(LearnerEvent::EndEpoch(report.epoch + 1));
            }
            Event::Validating { .. } | Event::Checkpoint(_) => {}
        };
        let result =
            self.spawn(&initial).and_then(|messages| self.coordinate(&messages, &components.interrupter, to_learner));
        let (model, result) = match result {
            Ok(model) => (model, Ok(())),
            Err(error) => (initial, Err(error)),
        };
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = result;
        (model, components.event_processor)
    }
}
