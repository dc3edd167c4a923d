//! Sums over samples: the loss, and what the task counts.

use std::ops::AddAssign;

/// How many numbers a task may count in addition to the loss.
pub const COUNTED: usize = 2;

/// Sums over samples; they add up over batches, replicas and processes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    /// Sum of the samples' losses.
    pub loss: f64,
    pub samples: usize,
    /// What the task counts, in its own order.
    pub counted: [f64; COUNTED],
}

impl Counts {
    /// The length of the message form.
    pub(super) const VALUES: usize = 2 + COUNTED;

    /// The message form between replicas.
    pub(super) fn to_values(self) -> [f64; Self::VALUES] {
        let mut values = [self.loss; Self::VALUES];
        values[1] = self.samples as f64;
        values[2..].copy_from_slice(&self.counted);
        values
    }

    /// The inverse of [`Counts::to_values`].
    pub(super) fn from_values(values: &[f64]) -> Self {
        let mut counted = [0.0; COUNTED];
        counted.copy_from_slice(&values[2..Self::VALUES]);
        Self { loss: values[0], samples: values[1] as usize, counted }
    }

    /// Adds one step to those of an epoch. A loss that overflowed is replaced by the mean of the epoch so far, since it
    /// would make the sum useless.
    pub fn add_step(&mut self, mut step: Self) {
        if !step.loss.is_finite() {
            step.loss = if self.samples == 0 { 0.0 } else { self.mean_loss() * step.samples as f64 };
        }
        *self += step;
    }

    pub fn mean_loss(&self) -> f64 {
        self.loss / self.samples as f64
    }

    /// The task's count at `place`, per sample.
    pub fn share(&self, place: usize) -> f64 {
        self.counted[place] / self.samples as f64
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.samples += other.samples;
        self.counted.iter_mut().zip(other.counted).for_each(|(sum, new)| *sum += new);
    }
}
