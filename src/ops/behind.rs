//! What stands behind a batch-norm in a residual network and is done in the same pass: the shortcut and the rectifier.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

use super::gradient::GradientOps;

/// What is done to the normalised values in the same step.
#[derive(Debug, Clone)]
pub enum Behind<T> {
    /// Nothing.
    Nothing,
    /// The rectifier, `max(x, 0)`.
    Rectifier,
    /// The rectifier, of the sum with a shortcut of the same shape.
    Sum(T),
}

impl<T> Behind<T> {
    pub(super) fn map<U>(self, map: impl FnOnce(T) -> U) -> Behind<U> {
        match self {
            Self::Nothing => Behind::Nothing,
            Self::Rectifier => Behind::Rectifier,
            Self::Sum(shortcut) => Behind::Sum(map(shortcut)),
        }
    }
}

/// The rectifier behind a batch-norm, as the backward pass wants it.
#[derive(Debug, Clone)]
pub struct Rectified<B: Backend> {
    /// What came out of it.
    pub output: FloatTensor<B>,
    /// The factors that the input was normalised with, `[channels]`.
    pub scale: FloatTensor<B>,
    /// The summands, `[channels]`.
    pub bias: FloatTensor<B>,
    /// Whether there is a shortcut. If not, the output is positive where `(x - mean) * scale + bias` is.
    pub summed: bool,
}

/// What is behind a batch-norm, by Burn's operations.
pub(super) fn followed<B: Backend>(output: FloatTensor<B>, behind: Behind<FloatTensor<B>>) -> FloatTensor<B> {
    match behind {
        Behind::Nothing => output,
        Behind::Rectifier => B::relu(output),
        Behind::Sum(shortcut) => B::relu(B::float_add(output, shortcut)),
    }
}

/// The gradient before the rectifier.
pub(super) fn unrectified<B: GradientOps>(
    gradient: FloatTensor<B>,
    rectified: Option<&Rectified<B>>,
) -> FloatTensor<B> {
    match rectified {
        Some(rectified) => B::rectified(rectified.output.clone(), gradient),
        None => gradient,
    }
}
