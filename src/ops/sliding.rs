//! Stride, padding and algorithm of a convolution.

use burn::tensor::Shape;
use burn::tensor::ops::ConvOptions;
use serde::{Deserialize, Serialize};

#[cfg(any(feature = "flex", feature = "tch"))]
use super::pieces::ParallelFor;
#[cfg(any(feature = "flex", feature = "tch"))]
use super::winograd::Winograd;

/// The algorithm of a convolution; algorithms round differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// The backend's fastest for the size.
    #[default]
    Auto,
    /// By the definition, never Winograd's.
    Direct,
}

/// Stride and padding, equal on both axes, and the algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sliding {
    /// Pixels from one position of the kernel to the next, at least 1.
    pub stride: usize,
    /// Zeros added on each side of the image.
    pub padding: usize,
    /// The algorithm.
    pub algorithm: Algorithm,
}

impl Sliding {
    pub(super) fn options(self) -> ConvOptions<2> {
        ConvOptions::new([self.stride; 2], [self.padding; 2], [1, 1], 1)
    }

    /// The plan for Winograd's algorithm on the CPU; `None` if it does not apply.
    #[cfg(any(feature = "flex", feature = "tch"))]
    pub(super) fn winograd(self, x: &Shape, weight: &Shape, parallel_for: ParallelFor) -> Option<Winograd> {
        let ours = Self { stride: 1, padding: 1, algorithm: Algorithm::Auto };
        let is_ours = self == ours && [weight[2], weight[3]] == [3, 3];
        is_ours.then(|| Winograd::new([x[0], x[1], x[2], x[3]], weight[0], parallel_for)).flatten()
    }
}
