//! Mixed precision by types: a *home* backend in f32, and *compute* backends in the half types.
//!
//! Parameters, optimizer, batch-norm's statistics and the loss are on the home backend `B`; convolutions, the linear
//! layer and activations are on a [`Precision`]'s `Compute`. Micikevicius et al. 2018, "Mixed precision training". Both
//! backends share their tensors' memory format, so a conversion costs at most a cast; `bridge.rs` makes it
//! differentiable. With [`Full`] the compute backend *is* the home backend: no cast, no node.
//!
//! In Burn 0.21 the element type of a tensor is data; the backend's own is only a default for new tensors, and an
//! unreliable one (the first backend on a device sets it). So every cast names its type.

use std::fmt::Debug;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Tensor, TensorMetadata};
use serde::{Deserialize, Serialize};

use super::host::HostOps;
use super::{TrainBackend, primitive, tensor};

/// The type in which convolutions and the linear layer compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionKind {
    #[serde(alias = "32", alias = "32-true", alias = "float32")]
    F32,
    /// 8 bits of exponent, like f32, and 8 of precision.
    #[serde(alias = "bf16-mixed", alias = "bfloat16")]
    Bf16,
    /// 5 bits of exponent and 11 of precision: gradients need a loss scale.
    #[serde(alias = "16-mixed", alias = "16", alias = "float16")]
    F16,
}

impl PrecisionKind {
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

/// A backend that computes for `Home` and shares its memory format.
pub trait ComputeBackend<Home: Backend>: TrainBackend<Device = Home::Device> {
    /// Converts a home tensor to this backend and type `dtype`. Its gradient is converted back to the type of `x`.
    fn from_home(x: FloatTensor<Home>, dtype: FloatDType) -> FloatTensor<Self>;

    /// The inverse of [`ComputeBackend::from_home`].
    fn to_home(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Home>;
}

/// A home backend with its compute backends of 16 bits.
pub trait MixedBackend: TrainBackend {
    type Bf16: ComputeBackend<Self>;
    type F16: ComputeBackend<Self>;
}

/// A precision as a type parameter of a forward pass.
pub trait Precision<B: TrainBackend>: Debug + 'static {
    /// The backend of convolutions and the linear layer.
    type Compute: TrainBackend<Device = B::Device>;

    /// To the compute backend, in the precision's type.
    fn to_compute<const D: usize>(x: Tensor<B, D>) -> Tensor<Self::Compute, D>;

    /// To the compute backend, in f32: for kernels, which a convolution converts if it must, and for batch-norm's
    /// parameters and statistics.
    fn to_compute_f32<const D: usize>(x: Tensor<B, D>) -> Tensor<Self::Compute, D>;

    /// To the home backend, in f32.
    fn to_home<const D: usize>(x: Tensor<Self::Compute, D>) -> Tensor<B, D>;
}

/// Everything in f32, on the home backend itself.
#[derive(Debug)]
pub struct Full;

/// Computes in bf16.
#[derive(Debug)]
pub struct BFloat16;

/// Computes in f16.
#[derive(Debug)]
pub struct Float16;

impl<B: TrainBackend> Precision<B> for Full {
    type Compute = B;

    fn to_compute<const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
        x
    }

    fn to_compute_f32<const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
        x
    }

    fn to_home<const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
        x
    }
}

macro_rules! half_precision {
    ($policy:ty, $compute:ident, $dtype:ident) => {
        impl<B: MixedBackend> Precision<B> for $policy {
            type Compute = B::$compute;

            fn to_compute<const D: usize>(x: Tensor<B, D>) -> Tensor<Self::Compute, D> {
                tensor(B::$compute::from_home(primitive(x), FloatDType::$dtype))
            }

            fn to_compute_f32<const D: usize>(x: Tensor<B, D>) -> Tensor<Self::Compute, D> {
                tensor(B::$compute::from_home(primitive(x), FloatDType::F32))
            }

            fn to_home<const D: usize>(x: Tensor<Self::Compute, D>) -> Tensor<B, D> {
                tensor(B::$compute::to_home(primitive(x), FloatDType::F32))
            }
        }
    };
}

half_precision!(BFloat16, Bf16, BF16);
half_precision!(Float16, F16, F16);

/// Implements [`MixedBackend`] for a home backend and compute backends of the same memory format.
#[cfg(any(feature = "flex", feature = "tch", feature = "cuda", feature = "wgpu"))]
macro_rules! mixed_backend {
    ($home:ty: $bf16:ty, $f16:ty) => {
        impl MixedBackend for $home {
            type Bf16 = $bf16;
            type F16 = $f16;
        }
        mixed_backend!(@bridge $home, $bf16);
        mixed_backend!(@bridge $home, $f16);
    };
    // A backend without an element type of its own is its own compute backend.
    ($home:ty) => {
        impl MixedBackend for $home {
            type Bf16 = $home;
            type F16 = $home;
        }
        mixed_backend!(@bridge $home, $home);
    };
    (@bridge $home:ty, $compute:ty) => {
        impl ComputeBackend<$home> for $compute {
            fn from_home(x: FloatTensor<$home>, dtype: FloatDType) -> FloatTensor<Self> {
                as_type::<Self>(x, dtype)
            }

            fn to_home(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<$home> {
                as_type::<$home>(x, dtype)
            }
        }
    };
}

#[cfg(feature = "flex")]
mixed_backend!(burn::backend::Flex);
#[cfg(feature = "tch")]
mixed_backend!(burn::backend::LibTorch<f32>:
    burn::backend::LibTorch<burn::tensor::bf16>, burn::backend::LibTorch<burn::tensor::f16>);
#[cfg(feature = "cuda")]
mixed_backend!(burn::backend::Cuda<f32, i32>:
    burn::backend::Cuda<burn::tensor::bf16, i32>, burn::backend::Cuda<burn::tensor::f16, i32>);
#[cfg(feature = "wgpu")]
mixed_backend!(burn::backend::Wgpu<f32, i32>:
    burn::backend::Wgpu<burn::tensor::bf16, i32>, burn::backend::Wgpu<burn::tensor::f16, i32>);

/// The tensor cast to `dtype`, unchanged if it already has that type.
pub fn as_type<B: HostOps>(x: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    if FloatDType::from(x.dtype()) == dtype { x } else { B::cast(x, dtype) }
}
