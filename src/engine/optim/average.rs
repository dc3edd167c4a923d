//! Exponential moving average of weights and running statistics, without bias correction (timm's ModelEmaV2).

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use kiln_ops::{UpdateOps, primitive, tensor};

/// `average = decay * average + (1 - decay) * value` after each step.
#[derive(Debug, Clone)]
pub struct WeightAverage<B: Backend> {
    decay: f64,
    pub values: Vec<Tensor<B, 1>>,
}

impl<B: UpdateOps> WeightAverage<B> {
    /// An average that starts at `values`; `decay` is in `[0, 1)`.
    pub fn new(decay: f64, values: Vec<Tensor<B, 1>>) -> Self {
        Self { decay, values }
    }

    /// Updates the average with the values after a step, in the same order.
    pub fn update(&mut self, values: Vec<Tensor<B, 1>>) {
        let old = std::mem::take(&mut self.values);
        let shares = [self.decay, 1.0 - self.decay];
        let pairs = old.into_iter().zip(values);
        self.values = pairs.map(|(old, new)| tensor(B::blend(primitive(old), primitive(new), shares))).collect();
    }
}
