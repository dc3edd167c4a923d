//! An update rule applied to all tensors of a model, with its state and its form in a checkpoint.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use kiln_ops::{UpdateOps, download_each, tensor};
use kiln_system::{Error, Result};

use super::arenas::Arenas;
use super::config::{OptimConfig, OptimizerKind};
use super::parameter::Parameter;
use super::rules::{Slots, Update, put};
use crate::state::{HostTensor, StateDict};

/// The key of the number of steps in a checkpoint.
const STEP: &str = "step";

/// The tensor that an entry of [`Optimizer::state_of`] belongs to.
pub fn tensor_of(entry: &str) -> &str {
    entry.rsplit_once('.').map_or(entry, |(tensor, _)| tensor)
}

/// The state of an optimizer that has taken no step.
pub fn initial_state() -> StateDict {
    StateDict::from([(STEP.into(), HostTensor::I64 { shape: Vec::new(), data: vec![0] })])
}

/// Owns the update rule's state of each tensor. Every replica has one; all are equal, or each has some of the tensors.
#[derive(Debug, Clone)]
pub struct Optimizer<B: Backend> {
    config: OptimConfig,
    tensors: Vec<Parameter>,
    arenas: Arenas,
    slots: Vec<Slots<B>>,
    /// The vectors of several parameters after the last step.
    params: Option<Vec<Tensor<B, 1>>>,
    /// The packed gradients of the next step, after [`Optimizer::prepare`].
    gradients: Option<Vec<Tensor<B, 1>>>,
    steps: usize,
    /// The rates of head and backbone and the number of the step, `[3]`, on the device; see [`Optimizer::announce`].
    there: Option<Tensor<B, 1>>,
}

impl<B: UpdateOps> Optimizer<B> {
    /// An optimizer that has taken no step, for tensors in this order.
    pub fn new(config: &OptimConfig, tensors: Vec<Parameter>) -> Self {
        // A processor changes each tensor in its own memory; LARS and LAMB need the norm of each.
        let is_apart = B::is_processor() || matches!(config.optimizer, OptimizerKind::Lars | OptimizerKind::Lamb);
        let arenas = if is_apart { Arenas::apart(&tensors) } else { Arenas::together(&tensors, config) };
        let slots = arenas.first().map(|_| Vec::new()).collect();
        let (config, (params, gradients, there)) = (config.clone(), Default::default());
        Self { config, tensors, arenas, slots, params, gradients, steps: 0, there }
    }

    pub fn arenas(&self) -> &Arenas {
        &self.arenas
    }

    /// Takes the gradients of the next step as vectors of [`Optimizer::arenas`].
    pub fn prepare(&mut self, gradients: Vec<Tensor<B, 1>>) {
        self.gradients = Some(gradients);
    }

    /// Begins a step with the rate and its number on the device: [`Optimizer::step`] reads those then, and may be
    /// recorded. The rule must be SGD, Adam or AdamW.
    pub fn announce(&mut self, rate: f64, device: &B::Device) {
        self.steps += 1;
        let numbers = [rate, rate * self.config.backbone_lr_scale, self.steps as f64].map(|number| number as f32);
        self.there = Some(put(tensor(B::from_host(&numbers, device)), self.there.take()));
    }

    /// The tensors after one step with the given rate; all lists in the order given at the start.
    ///
    /// The parameters must not change between steps. With [`UpdateOps::IN_PLACE`] they change in this one.
    pub fn step(&mut self, rate: f64, params: Vec<Tensor<B, 1>>, gradients: Vec<Tensor<B, 1>>) -> Vec<Tensor<B, 1>> {
        // What was not announced is not replayed.
        let rate = if self.there.is_some() { f64::NAN } else { rate };
        self.steps += usize::from(self.there.is_none());
        let params = self.params.take().unwrap_or_else(|| self.arenas.pack(params));
        let gradients = self.gradients.take().unwrap_or_else(|| self.arenas.pack(gradients));
        let mut updated = Vec::with_capacity(params.len());
        for (i, ((param, gradient), first)) in params.into_iter().zip(gradients).zip(self.arenas.first()).enumerate() {
            let (config, step, parameter) = (&self.config, self.steps, &self.tensors[first]);
            let (weight_decay, &Parameter { vector, head, .. }) = (config.weight_decay_of(parameter), parameter);
            let rate = if head { rate } else { rate * config.backbone_lr_scale };
            let place = B::IN_PLACE.then(|| param.clone());
            let number = |at: usize| self.there.as_ref().map(|numbers| numbers.clone().slice(at..at + 1));
            let there = number(usize::from(!head)).zip(number(2)).map(<[_; 2]>::from);
            let update = Update { config, rate, weight_decay, step, vector, param, gradient, there };
            let (param, slots) = update.apply(std::mem::take(&mut self.slots[i]));
            self.slots[i] = slots;
            updated.push(put(param, place));
        }
        self.params = self.arenas.is_shared().then(|| updated.clone());
        self.arenas.unpack(updated)
    }

    /// The vectors of its state, which are equal on all replicas.
    pub fn memory(&self) -> impl Iterator<Item = &Tensor<B, 1>> {
        self.slots.iter().flatten()
    }

    /// What [`Optimizer::load`] needs of the tensors with some names: `<tensor>.<slot>` and the number of steps.
    pub fn state_of(&self, is_wanted: &dyn Fn(&str) -> bool) -> StateDict {
        let mut state = StateDict::new();
        state.insert(STEP.into(), HostTensor::I64 { shape: Vec::new(), data: vec![self.steps as i64] });
        for slot in 0..self.slots.first().map_or(0, Vec::len) {
            let vectors = self.slots.iter().map(|slots| slots[slot].clone()).collect();
            let vectors = self.arenas.unpack(vectors).into_iter().zip(&self.tensors);
            let (vectors, tensors): (Vec<_>, Vec<_>) = vectors.filter(|(_, tensor)| is_wanted(&tensor.name)).unzip();
            let values = download_each(vectors).into_iter().zip(tensors);
            let named = |(data, tensor): (Vec<f32>, &Parameter)| {
                (format!("{}.{slot}", tensor.name), HostTensor::F32 { shape: vec![data.len()], data })
            };
            state.extend(values.map(named));
        }
        state
    }

    /// Restores the state of [`Optimizer::state_of`] all tensors.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it belongs to another model or update rule.
    pub fn load(&mut self, state: &StateDict, device: &B::Device) -> Result<()> {
        let foreign = || Error::Checkpoint("the optimizer's state belongs to another model or optimizer".into());
        let data = state.get(STEP).and_then(HostTensor::as_i64).ok_or_else(foreign)?;
        self.steps = data.first().map_or(0, |steps| *steps as usize);
        (self.params, self.gradients) = (None, None);
        self.slots.iter_mut().for_each(Vec::clear);
        let known = |tensor: &Parameter, slot: usize| state.get(&format!("{}.{slot}", tensor.name))?.as_f32();
        let first = self.tensors.first();
        let count = (0..).take_while(|slot| first.is_some_and(|first| known(first, *slot).is_some())).count();
        for slot in 0..count {
            let of = |tensor: &Parameter| known(tensor, slot).filter(|data| data.len() == tensor.length);
            let values: Option<Vec<&[f32]>> = self.tensors.iter().map(of).collect();
            let on_device = |data: &[f32]| Tensor::from_data(TensorData::new(data.to_vec(), [data.len()]), device);
            let vectors = self.arenas.pack(values.ok_or_else(foreign)?.into_iter().map(on_device).collect());
            self.slots.iter_mut().zip(vectors).for_each(|(slots, vector)| slots.push(vector));
        }
        if count * self.tensors.len() + 1 == state.len() { Ok(()) } else { Err(foreign()) }
    }
}
