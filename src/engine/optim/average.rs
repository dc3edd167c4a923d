//! Exponential moving average of weights and running statistics, without bias correction (timm's ModelEmaV2).

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use kiln_ops::{UpdateOps, primitive, tensor};

/// Which steps of a run an average takes, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AveragedSteps {
    /// The first step of each epoch and every so many after it, at least 1.
    pub every: usize,
    /// At least 1.
    pub per_epoch: usize,
    /// The step at which averaging begins: the average is a copy until then. With `None` it begins with the weights
    /// before the first step.
    pub copied_until: Option<usize>,
}

impl AveragedSteps {
    /// What becomes of the average after step `step`; nothing, a copy as in torchvision's script, or a mean.
    fn after(&self, step: usize) -> Change {
        let step_in_epoch = step % self.per_epoch;
        if !step_in_epoch.is_multiple_of(self.every) {
            return Change::Nothing;
        }
        // The step that the average took before this one.
        let before = match step_in_epoch {
            0 => step.checked_sub(1 + (self.per_epoch - 1) % self.every),
            _ => Some(step - self.every),
        };
        let is_copy = |first: usize| before.is_none_or(|before| before < first);
        if self.copied_until.is_some_and(is_copy) { Change::Copy } else { Change::Mean }
    }
}

enum Change {
    Nothing,
    Copy,
    Mean,
}

/// `average = decay * average + (1 - decay) * value` after some steps.
#[derive(Debug, Clone)]
pub struct WeightAverage<B: Backend> {
    decay: f64,
    steps: AveragedSteps,
    pub values: Vec<Tensor<B, 1>>,
}

impl<B: UpdateOps> WeightAverage<B> {
    /// An average that starts at `values`; `decay` is in `[0, 1)`.
    pub fn new(decay: f64, steps: AveragedSteps, values: Vec<Tensor<B, 1>>) -> Self {
        Self { decay, steps, values: own(values) }
    }

    /// Updates the average with the `values` after step `step` of the run, from 0, in the same order.
    pub fn update(&mut self, step: usize, values: impl FnOnce() -> Vec<Tensor<B, 1>>) {
        match self.steps.after(step) {
            Change::Nothing => {}
            Change::Copy => self.values = own(values()),
            Change::Mean => {
                let shares = [self.decay, 1.0 - self.decay];
                let pairs = std::mem::take(&mut self.values).into_iter().zip(values());
                self.values =
                    pairs.map(|(old, new)| tensor(B::blend(primitive(old), primitive(new), shares))).collect();
            }
        }
    }
}

/// The weights as they are now.
fn own<B: UpdateOps>(values: Vec<Tensor<B, 1>>) -> Vec<Tensor<B, 1>> {
    values.into_iter().map(|values| tensor(B::own(primitive(values)))).collect()
}
