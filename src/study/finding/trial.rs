//! A short run of one batch size, and memory as a function of the size.

use serde::{Deserialize, Serialize};

/// A trial of one batch size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Images of a replica in a step.
    pub batch_size: usize,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It trained.
    Fits {
        /// Images per second, of all replicas.
        images_per_second: f64,
        /// Peak memory, in bytes; 0 if unknown.
        memory_bytes: u64,
    },
    /// It did not fit into memory.
    TooLarge {
        /// The error message.
        why: String,
    },
}

impl Trial {
    /// Whether it fits into memory.
    pub fn fits(&self) -> bool {
        matches!(self.outcome, Outcome::Fits { .. })
    }

    /// Its images per second, if it fits.
    pub fn images_per_second(&self) -> Option<f64> {
        match self.outcome {
            Outcome::Fits { images_per_second, .. } => Some(images_per_second),
            Outcome::TooLarge { .. } => None,
        }
    }

    /// Its size and memory, if known.
    pub fn memory(&self) -> Option<(usize, u64)> {
        match self.outcome {
            Outcome::Fits { memory_bytes, .. } if memory_bytes > 0 => Some((self.batch_size, memory_bytes)),
            _ => None,
        }
    }
}

/// Memory as a linear function of the batch size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemoryLine {
    /// Bytes independent of the size: weights, optimizer, the program.
    pub fixed: f64,
    /// Bytes per image.
    pub per_image: f64,
}

impl MemoryLine {
    /// The least-squares line through sizes and their bytes; constant for one point, `None` for none.
    pub fn through(points: &[(usize, u64)]) -> Option<Self> {
        let count = points.len() as f64;
        let points = || points.iter().map(|(size, bytes)| (*size as f64, *bytes as f64));
        let (size, bytes) = points().fold((0.0, 0.0), |sum, it| (sum.0 + it.0 / count, sum.1 + it.1 / count));
        let covariance: f64 = points().map(|it| (it.0 - size) * (it.1 - bytes)).sum();
        let variance: f64 = points().map(|it| (it.0 - size).powi(2)).sum();
        let per_image = if variance > 0.0 { covariance / variance } else { 0.0 };
        (count > 0.0).then_some(Self { fixed: bytes - per_image * size, per_image })
    }

    /// Bytes of a size.
    pub fn bytes(&self, size: f64) -> f64 {
        self.fixed + self.per_image * size
    }

    /// The largest size that needs at most `bytes`; `usize::MAX` if memory does not grow with the size.
    pub fn largest(&self, bytes: f64) -> usize {
        // The conversion saturates.
        if self.per_image > 0.0 { ((bytes - self.fixed) / self.per_image).floor() as usize } else { usize::MAX }
    }
}
