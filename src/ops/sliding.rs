//! Stride, padding and algorithm of a convolution.

use burn::tensor::ops::ConvOptions;
use serde::{Deserialize, Serialize};

/// The algorithm of a convolution; algorithms round differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// The backend's fastest for the size.
    #[default]
    Auto,
    /// By the definition, never Winograd's.
    Direct,
}

/// Stride and padding, equal on both axes, and the algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sliding {
    /// Pixels from one position of the kernel to the next, at least 1.
    pub stride: usize,
    /// Zeros added on each side of the image.
    pub padding: usize,
    pub algorithm: Algorithm,
}

impl Sliding {
    /// Positions of a kernel of `kernel` pixels along an axis of `size`.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(super) fn positions(self, size: usize, kernel: usize) -> usize {
        (size + 2 * self.padding - kernel) / self.stride + 1
    }

    pub(super) fn options(self) -> ConvOptions<2> {
        ConvOptions::new([self.stride; 2], [self.padding; 2], [1, 1], 1)
    }
}
