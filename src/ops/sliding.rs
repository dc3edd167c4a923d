//! Stride, padding, groups and algorithm of a convolution.

#[cfg(any(feature = "flex", feature = "tch"))]
use burn::tensor::Shape;
use burn::tensor::ops::ConvOptions;
#[cfg(any(feature = "flex", feature = "tch"))]
use kiln_kernels::{Convolution, Geometry, ParallelFor};
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

/// Stride and padding, equal on both axes, groups and the algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sliding {
    /// Pixels from one position of the kernel to the next, at least 1.
    pub stride: usize,
    /// Zeros added on each side of the image.
    pub padding: usize,
    /// Groups of channels, each convolved by itself, at least 1; they divide both the inputs and the outputs.
    pub groups: usize,
    pub algorithm: Algorithm,
}

impl Sliding {
    /// Positions of a kernel of `kernel` pixels along an axis of `size`.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(super) fn positions(self, size: usize, kernel: usize) -> usize {
        (size + 2 * self.padding - kernel) / self.stride + 1
    }

    /// The plan of a convolution of one group in the host's memory: of images `x` with kernels `weight`, by their
    /// shapes as in [`super::ConvOps`].
    #[cfg(any(feature = "flex", feature = "tch"))]
    pub(super) fn plan(self, x: &Shape, weight: &Shape, parallel_for: ParallelFor) -> Convolution {
        let Self { stride, padding, algorithm, .. } = self;
        let ([batch, inputs, ..], [outputs, _, ..]): ([usize; 4], [usize; 4]) = (x.dims(), weight.dims());
        let (size, kernel) = ([x[2], x[3]], [weight[2], weight[3]]);
        let geometry = Geometry { batch, inputs, outputs, size, kernel, stride, padding, parallel_for };
        Convolution::new(geometry, algorithm == Algorithm::Direct)
    }

    pub(super) fn options(self) -> ConvOptions<2> {
        ConvOptions::new([self.stride; 2], [self.padding; 2], [1, 1], self.groups)
    }
}
