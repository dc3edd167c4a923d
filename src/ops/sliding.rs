//! How a convolution's kernel moves, and by which algorithm the products are computed.

use burn::tensor::Shape;
use burn::tensor::ops::ConvOptions;
use serde::{Deserialize, Serialize};

#[cfg(any(feature = "flex", feature = "tch"))]
use super::pieces::Each;
#[cfg(any(feature = "flex", feature = "tch"))]
use super::winograd::Winograd;

/// How the products of a convolution are computed; they round differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// By the size, as the backend does it fastest.
    #[default]
    Auto,
    /// As they are defined.
    Direct,
}

/// How far the kernel moves and how many zeros surround the image, alike on both axes; and how that is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sliding {
    /// Pixels from one position of the kernel to the next, at least 1.
    pub stride: usize,
    /// Zeros added on each side of the image.
    pub padding: usize,
    /// How the products are computed.
    pub algorithm: Algorithm,
}

impl Sliding {
    pub(super) fn options(self) -> ConvOptions<2> {
        ConvOptions::new([self.stride; 2], [self.padding; 2], [1, 1], 1)
    }

    /// How the host's processor computes it with fewer multiplications than it is defined by, if that is asked for.
    #[cfg(any(feature = "flex", feature = "tch"))]
    pub(super) fn winograd(self, x: &Shape, weight: &Shape, each: Each) -> Option<Winograd> {
        let ours = Self { stride: 1, padding: 1, algorithm: Algorithm::Auto };
        let is_ours = self == ours && [weight[2], weight[3]] == [3, 3];
        is_ours.then(|| Winograd::new([x[0], x[1], x[2], x[3]], weight[0], each)).flatten()
    }
}
