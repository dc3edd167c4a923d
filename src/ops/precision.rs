//! Mixed precision: one definition of a network, generic over its backend, in f32 or in a half type.
//!
//! Parameters, optimizer, batch-norm's statistics and the loss are f32. The activations are in a [`Precision`], and
//! each primitive computes in the type of the activations that it is given: it takes its parameters in f32, converts
//! them itself if it must, and returns their gradients in f32. A network casts its input, and `linear` casts its
//! outputs back. Micikevicius et al. 2018, "Mixed precision training".
//!
//! In Burn 0.21 the element type of a tensor is data. A backend's own is only a default for new tensors, and an
//! unreliable one (the first backend on a device sets it), so every cast names its type.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Tensor, TensorMetadata};
use serde::{Deserialize, Serialize};

use super::host::HostOps;
use super::{primitive, tensor};

/// The type in which convolutions and the linear layer compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    #[serde(alias = "32", alias = "32-true", alias = "float32")]
    F32,
    /// 8 bits of exponent, like f32, and 8 of precision.
    #[serde(alias = "bf16-mixed", alias = "bfloat16")]
    Bf16,
    /// 5 bits of exponent and 11 of precision: gradients need a loss scale.
    #[serde(alias = "16-mixed", alias = "16", alias = "float16")]
    F16,
}

impl Precision {
    /// Burn's name of the type.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// Bytes per value.
    pub fn bytes(self) -> usize {
        self.dtype().size()
    }

    /// Whether small gradients underflow, so that the loss must be scaled.
    pub fn needs_loss_scale(self) -> bool {
        self == Self::F16
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

/// `x` in another type, unchanged if it has that type already; its gradient is converted back. [`Tensor::cast`] goes
/// through f64 on some backends.
pub fn cast<B: HostOps, const D: usize>(x: Tensor<B, D>, dtype: impl Into<FloatDType>) -> Tensor<B, D> {
    tensor(as_type::<B>(primitive(x), dtype.into()))
}

/// [`cast`] of a primitive.
pub fn as_type<B: HostOps>(x: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    if FloatDType::from(x.dtype()) == dtype { x } else { B::cast(x, dtype) }
}
