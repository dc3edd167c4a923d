//! An update rule applied to all tensors of a model, with its state and its form in a checkpoint.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

use super::config::OptimConfig;
use super::rules::{Slots, Update};
use crate::error::{Error, Result};
use crate::ops::UpdateOps;
use crate::state::{HostTensor, StateDict};

/// The key of the number of steps in a checkpoint.
const STEP: &str = "step";

/// Owns the update rule's state of each tensor. Every replica has one; all are equal.
#[derive(Debug, Clone)]
pub struct Optimizer<B: Backend> {
    config: OptimConfig,
    tensors: Vec<Parameter>,
    slots: Vec<Slots<B>>,
    steps: usize,
}

/// A tensor's properties that decide its weight decay and learning rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// The tensor's name in the model.
    pub name: String,
    /// Whether it is one-dimensional: a bias or a parameter of batch-norm.
    pub vector: bool,
    /// Whether it belongs to the classifier.
    pub head: bool,
}

impl<B: UpdateOps> Optimizer<B> {
    /// An optimizer that has taken no step, for tensors in this order.
    pub fn new(config: &OptimConfig, tensors: Vec<Parameter>) -> Self {
        let slots = tensors.iter().map(|_| Vec::new()).collect();
        Self { config: config.clone(), tensors, slots, steps: 0 }
    }

    /// The tensors after one step with the given rate; all lists in the order given at the start.
    pub fn step(&mut self, rate: f64, params: Vec<Tensor<B, 1>>, gradients: Vec<Tensor<B, 1>>) -> Vec<Tensor<B, 1>> {
        self.steps += 1;
        let mut updated = Vec::with_capacity(params.len());
        for (i, (param, gradient)) in params.into_iter().zip(gradients).enumerate() {
            let (config, step, &Parameter { vector, head, .. }) = (&self.config, self.steps, &self.tensors[i]);
            let rate = if head { rate } else { rate * config.backbone_lr_scale };
            let weight_decay = if vector && !config.decay_norm_bias { 0.0 } else { config.weight_decay };
            let update = Update { config, rate, weight_decay, step, vector, param, gradient };
            let (param, slots) = update.apply(std::mem::take(&mut self.slots[i]));
            self.slots[i] = slots;
            updated.push(param);
        }
        updated
    }

    /// Everything [`Optimizer::load`] needs: `<tensor>.<slot>` and the number of steps.
    pub fn state(&self) -> StateDict {
        let mut state = StateDict::new();
        state.insert(STEP.into(), HostTensor::I64 { shape: Vec::new(), data: vec![self.steps as i64] });
        for (tensor, slots) in self.tensors.iter().zip(&self.slots) {
            for (slot, value) in slots.iter().enumerate() {
                let data: Vec<f32> = value.clone().into_data().iter::<f32>().collect();
                state.insert(format!("{}.{slot}", tensor.name), HostTensor::F32 { shape: vec![data.len()], data });
            }
        }
        state
    }

    /// Restores the state of [`Optimizer::state`].
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it belongs to another model or update rule.
    pub fn load(&mut self, state: &StateDict, device: &B::Device) -> Result<()> {
        let foreign = || Error::Checkpoint("the optimizer's state belongs to another model or optimizer".into());
        let data = state.get(STEP).and_then(HostTensor::as_i64).ok_or_else(foreign)?;
        self.steps = data.first().map_or(0, |steps| *steps as usize);
        for (tensor, slots) in self.tensors.iter().zip(&mut self.slots) {
            let values = (0..).map_while(|slot| state.get(&format!("{}.{slot}", tensor.name))?.as_f32());
            *slots =
                values.map(|data| Tensor::from_data(TensorData::new(data.to_vec(), [data.len()]), device)).collect();
        }
        let known: usize = self.slots.iter().map(Vec::len).sum();
        if known + 1 == state.len() { Ok(()) } else { Err(foreign()) }
    }
}
