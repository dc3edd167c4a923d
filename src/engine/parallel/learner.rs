//! Optimizers and learning-rate schedules of any type for Burn's learner, in a form that checkpoints can save.
//!
//! [`burn_train::Learner`] does not expose its optimizer, so a checkpoint reaches its state through an [`UpdateRule`],
//! a handle that the learner and its replica share. Kiln's own rules keep their state in named tensors; the state of
//! another optimizer goes through Burn's recorder. A schedule has no input but the reductions of a plateau, so a
//! resumed run repeats its steps instead of saving its state.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::optim::lr_scheduler::LrScheduler;
use burn::optim::{GradientsParams, MultiGradientsParams, Optimizer};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_train::{Learner, LearningComponentsMarker};
use kiln_system::{Error, Result};
use parking_lot::{Mutex, MutexGuard};

use super::{Handle, HostBackend, Plan, Position, Task, TaskModel, TrainingModel};
use crate::nn::{
    TensorSet, Weights, flat, found_gradients, trained_parameters, with_flat, with_named_ids, with_own_memory,
};
use crate::optim::{self, Arenas, Schedule};
use crate::state::{HostTensor, StateDict};

pub type Components<B, T> =
    LearningComponentsMarker<Autodiff<B>, LearningRate, TrainingModel<B, T>, UpdateRule<B, TrainingModel<B, T>>>;

pub type TaskLearner<B, T> = Learner<Components<B, T>>;

/// The task, the update rule and the learning rates.
pub(super) struct Recipe<B: HostBackend, T: Task<B>> {
    pub(super) task: Arc<T>,
    /// `None` for Kiln's own, as in the plan.
    pub(super) rule: Option<UpdateRule<B, TrainingModel<B, T>>>,
    pub(super) schedule: LearningRate,
}

impl<B: HostBackend, T: Task<B>> Recipe<B, T> {
    /// A learner at `position`, and the update rule in it: for the trained tensors at the places `own`, or all.
    pub(super) fn learner(
        &self,
        plan: &Plan,
        model: T::Model,
        position: &Position,
        own: Option<Range<usize>>,
    ) -> (TaskLearner<B, T>, UpdateRule<B, TrainingModel<B, T>>) {
        let model = with_own_memory(with_named_ids(model), own.clone());
        let own = || {
            let parameters = self.parameters(&model);
            let own = own.unwrap_or(0..parameters.len());
            let optimizer = optim::Optimizer::new(&plan.optim, parameters[own.clone()].to_vec());
            UpdateRule::new(Box::new(Kilns { optimizer, own }))
        };
        let rule = self.rule.as_ref().map_or_else(own, UpdateRule::copy);
        let schedule = self.schedule.clone().load_record::<B>((position.global_step, position.plateau.reductions));
        (Learner::new(TaskModel::new(model, Handle(self.task.clone())), rule.clone(), schedule), rule)
    }

    fn parameters(&self, model: &T::Model) -> Vec<optim::Parameter> {
        let parameter = |Weights { name, shape, .. }| optim::Parameter {
            length: shape.iter().product(),
            vector: shape.len() < 2,
            head: self.task.is_head(&name),
            name,
        };
        trained_parameters(model).map(parameter).collect()
    }
}

/// An update rule of any type.
pub(super) trait Rule<B: HostBackend, M>: Send {
    fn step(&mut self, rate: f64, model: M, gradients: GradientsParams) -> M;

    /// The state of the tensors with some names, for a checkpoint.
    fn state_of(&self, is_wanted: &dyn Fn(&str) -> bool) -> StateDict;

    fn load(&mut self, state: &StateDict, device: &B::Device) -> Result<()>;
    fn copy(&self) -> Box<dyn Rule<B, M>>;

    /// What it remembers, if that has an order.
    fn memory(&self) -> Vec<Tensor<B, 1>> {
        Vec::new()
    }

    /// As [`optim::Optimizer::announce`], of Kiln's own.
    fn announce(&mut self, _rate: f64, _device: &B::Device) {}

    /// The vectors that it wants gradients in, if it does.
    fn arenas(&self) -> Option<Arenas> {
        None
    }

    /// Takes the gradients of the next step as such vectors.
    fn prepare(&mut self, _gradients: Vec<Tensor<B, 1>>) {}
}

/// Kiln's own optimizer, for the trained tensors at the places `own`.
#[derive(Clone)]
struct Kilns<B: HostBackend> {
    optimizer: optim::Optimizer<B>,
    own: Range<usize>,
}

impl<B: HostBackend, M: AutodiffModule<Autodiff<B>>> Rule<B, M> for Kilns<B> {
    fn step(&mut self, rate: f64, model: M, gradients: GradientsParams) -> M {
        let (gradients, _) = found_gradients(&model, gradients);
        assert_eq!(gradients.len(), self.own.len(), "each of the own tensors has a gradient");
        let mut tensors = flat(&model, TensorSet::Trained);
        let updated = self.optimizer.step(rate, tensors[self.own.clone()].to_vec(), gradients);
        tensors.splice(self.own.clone(), updated);
        with_flat(model, TensorSet::Trained, tensors)
    }

    fn state_of(&self, is_wanted: &dyn Fn(&str) -> bool) -> StateDict {
        self.optimizer.state_of(is_wanted)
    }

    fn load(&mut self, state: &StateDict, device: &B::Device) -> Result<()> {
        self.optimizer.load(state, device)
    }

    fn copy(&self) -> Box<dyn Rule<B, M>> {
        Box::new(self.clone())
    }

    fn memory(&self) -> Vec<Tensor<B, 1>> {
        self.optimizer.memory().cloned().collect()
    }

    fn announce(&mut self, rate: f64, device: &B::Device) {
        self.optimizer.announce(rate, device);
    }

    fn arenas(&self) -> Option<Arenas> {
        Some(self.optimizer.arenas().clone()).filter(Arenas::is_shared)
    }

    fn prepare(&mut self, gradients: Vec<Tensor<B, 1>>) {
        self.optimizer.prepare(gradients);
    }
}

/// An optimizer of Burn. The order of its record is random, so replicas cannot be compared by it: what it has wrong
/// shows in the weights after the next step.
struct Burns<O>(O);

/// The record of Burn's recorder, eight bytes per number.
const RECORD: &str = "record";
const BYTES: &str = "bytes";

impl<B: HostBackend, M, O> Rule<B, M> for Burns<O>
where
    M: AutodiffModule<Autodiff<B>>,
    O: Optimizer<M, Autodiff<B>> + 'static,
{
    fn step(&mut self, rate: f64, model: M, gradients: GradientsParams) -> M {
        self.0.step(rate, model, gradients)
    }

    /// All of it: the record does not say what belongs to which tensor.
    fn state_of(&self, _is_wanted: &dyn Fn(&str) -> bool) -> StateDict {
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let mut bytes = Recorder::<Autodiff<B>>::record(&recorder, self.0.to_record(), ())
            .expect("numbers in memory can always be written to memory");
        let length = vec![bytes.len() as i64];
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let data: Vec<i64> = bytemuck::pod_collect_to_vec(&bytes);
        let record = HostTensor::I64 { shape: vec![data.len()], data };
        [(RECORD.into(), record), (BYTES.into(), HostTensor::I64 { shape: Vec::new(), data: length })].into()
    }

    fn load(&mut self, state: &StateDict, device: &B::Device) -> Result<()> {
        let foreign = || Error::Checkpoint("the optimizer's state belongs to another model or optimizer".into());
        let numbers = |name: &str| state.get(name).and_then(HostTensor::as_i64).ok_or_else(foreign);
        let (record, length) = (numbers(RECORD)?, numbers(BYTES)?);
        let length = length.first().and_then(|length| usize::try_from(*length).ok()).ok_or_else(foreign)?;
        let bytes = bytemuck::cast_slice::<i64, u8>(record).get(..length).ok_or_else(foreign)?.to_vec();
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let record = Recorder::<Autodiff<B>>::load(&recorder, bytes, device).map_err(|_| foreign())?;
        self.0 = self.0.clone().load_record(record);
        Ok(())
    }

    fn copy(&self) -> Box<dyn Rule<B, M>> {
        Box::new(Self(self.0.clone()))
    }
}

/// An optimizer for models `M`. Clones share it.
pub struct UpdateRule<B: HostBackend, M>(Arc<Mutex<Box<dyn Rule<B, M>>>>);

impl<B: HostBackend, M: AutodiffModule<Autodiff<B>>> UpdateRule<B, M> {
    fn new(rule: Box<dyn Rule<B, M>>) -> Self {
        Self(Arc::new(Mutex::new(rule)))
    }

    pub(super) fn of(optimizer: impl Optimizer<M, Autodiff<B>> + 'static) -> Self {
        Self::new(Box::new(Burns(optimizer)))
    }

    fn copy(&self) -> Self {
        Self::new(self.lock().copy())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Box<dyn Rule<B, M>>> {
        self.0.lock()
    }
}

impl<B: HostBackend, M> Clone for UpdateRule<B, M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Burn saves no record of it: checkpoints take its state from the rule itself.
impl<B: HostBackend, M: AutodiffModule<Autodiff<B>>> Optimizer<M, Autodiff<B>> for UpdateRule<B, M> {
    type Record = ();

    fn step(&mut self, rate: f64, model: M, gradients: GradientsParams) -> M {
        self.lock().step(rate, model, gradients)
    }

    fn step_multi(&mut self, _: f64, _: M, _: MultiGradientsParams) -> M {
        unreachable!("a replica has one device")
    }

    fn to_record(&self) {}

    fn load_record(self, _: ()) -> Self {
        self
    }
}

/// A schedule of learning rates, of any type.
pub struct LearningRate {
    schedule: Box<dyn Steps>,
    steps: usize,
    /// By the plateau schedule.
    reductions: usize,
}

trait Steps: Send + Sync {
    /// The rate of `step` after some reductions; called once for each step, in order.
    fn next(&mut self, step: usize, reductions: usize) -> f64;
    fn copy(&self) -> Box<dyn Steps>;
}

impl Steps for Schedule {
    fn next(&mut self, step: usize, reductions: usize) -> f64 {
        self.reduced(step, reductions)
    }

    fn copy(&self) -> Box<dyn Steps> {
        Box::new(self.clone())
    }
}

impl<S: LrScheduler + 'static> Steps for S {
    fn next(&mut self, _step: usize, _reductions: usize) -> f64 {
        self.step()
    }

    fn copy(&self) -> Box<dyn Steps> {
        Box::new(self.clone())
    }
}

impl LearningRate {
    pub(super) fn of_plan(plan: &Plan) -> Self {
        Self { schedule: Box::new(plan.schedule.clone()), steps: 0, reductions: 0 }
    }

    /// Any scheduler of Burn, before its first step.
    pub(super) fn of(schedule: impl LrScheduler + 'static) -> Self {
        Self { schedule: Box::new(schedule), steps: 0, reductions: 0 }
    }
}

impl Clone for LearningRate {
    fn clone(&self) -> Self {
        Self { schedule: self.schedule.copy(), ..*self }
    }
}

impl LrScheduler for LearningRate {
    type Record<B: Backend> = (usize, usize);

    fn step(&mut self) -> f64 {
        self.steps += 1;
        self.schedule.next(self.steps - 1, self.reductions)
    }

    fn to_record<B: Backend>(&self) -> (usize, usize) {
        (self.steps, self.reductions)
    }

    fn load_record<B: Backend>(mut self, (steps, reductions): (usize, usize)) -> Self {
        self.reductions = reductions;
        for _ in self.steps..steps {
            self.step();
        }
        self
    }
}
