//! Mixed precision by types: a *home* backend in f32, and *compute* backends in the half types.
//!
//! Parameters, optimizer, batch-norm's statistics and the loss live on the home backend `B`; convolutions, the linear
//! layer and the activations between them on a [`Precision`]'s `Compute`. Micikevicius et al. 2018, "Mixed precision
//! training". The two backends share their tensors' memory format, so going from one to the other costs a cast at most;
//! `bridge.rs` makes it differentiable. With [`Full`] the compute backend *is* the home backend: no cast, no node.
//!
//! The element type of a tensor is data in Burn 0.21 and the backend's own is only a default for new tensors, and
//! not a reliable one (the first backend on a device sets it): so types are named wherever a tensor is cast.

use std::fmt::Debug;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Tensor, TensorMetadata, TensorPrimitive};
use serde::{Deserialize, Serialize};

use super::TrainBackend;

/// The type in which convolutions and the linear layer compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionKind {
    /// Everything in f32.
    #[serde(alias = "32", alias = "32-true", alias = "float32")]
    F32,
    /// 8 bits of exponent, as f32, and 8 of precision.
    #[serde(alias = "bf16-mixed", alias = "bfloat16")]
    Bf16,
    /// 5 bits of exponent and 11 of precision: gradients need a loss scale.
    #[serde(alias = "16-mixed", alias = "16", alias = "float16")]
    F16,
}

impl PrecisionKind {
    /// The tensors' type.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        self.dtype().size()
    }

    /// Whether small gradients vanish in it, so that the loss has to be scaled.
    pub fn needs_loss_scale(self) -> bool {
        self == Self::F16
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

/// A backend that computes for `Home` and shares its tensors' memory format.
pub trait ComputeBackend<Home: Backend>: TrainBackend<Device = Home::Device> {
    /// A home tensor as one of this backend, in type `dtype`. The gradient goes back in the type that `x` has.
    fn bring(x: FloatTensor<Home>, dtype: FloatDType) -> FloatTensor<Self>;

    /// The inverse of [`ComputeBackend::bring`].
    fn give(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Home>;
}

/// A home backend and those that compute for it in half the bits.
pub trait MixedBackend: TrainBackend {
    /// Computes in bf16.
    type Bf16: ComputeBackend<Self>;
    /// Computes in f16.
    type F16: ComputeBackend<Self>;
}

/// A precision as a type: what a forward pass is generic over.
pub trait Precision<B: TrainBackend>: Debug + 'static {
    /// Where convolutions and the linear layer run.
    type Compute: TrainBackend<Device = B::Device>;

    /// To the compute backend, in its type.
    fn down(x: FloatTensor<B>) -> FloatTensor<Self::Compute>;

    /// To the compute backend, in f32: for batch-norm's parameters and statistics.
    fn across(x: FloatTensor<B>) -> FloatTensor<Self::Compute>;

    /// Back home, in f32.
    fn up(x: FloatTensor<Self::Compute>) -> FloatTensor<B>;
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

    fn down(x: FloatTensor<B>) -> FloatTensor<B> {
        x
    }

    fn across(x: FloatTensor<B>) -> FloatTensor<B> {
        x
    }

    fn up(x: FloatTensor<B>) -> FloatTensor<B> {
        x
    }
}

macro_rules! half_precision {
    ($policy:ty, $compute:ident, $dtype:ident) => {
        impl<B: MixedBackend> Precision<B> for $policy {
            type Compute = B::$compute;

            fn down(x: FloatTensor<B>) -> FloatTensor<Self::Compute> {
                B::$compute::bring(x, FloatDType::$dtype)
            }

            fn across(x: FloatTensor<B>) -> FloatTensor<Self::Compute> {
                B::$compute::bring(x, FloatDType::F32)
            }

            fn up(x: FloatTensor<Self::Compute>) -> FloatTensor<B> {
                B::$compute::give(x, FloatDType::F32)
            }
        }
    };
}

half_precision!(BFloat16, Bf16, BF16);
half_precision!(Float16, F16, F16);

/// Joins a home backend to compute backends of the same memory format.
macro_rules! mixed_backend {
    ($home:ty: $bf16:ty, $f16:ty) => {
        impl MixedBackend for $home {
            type Bf16 = $bf16;
            type F16 = $f16;
        }
        mixed_backend!(@bridge $home, $bf16);
        mixed_backend!(@bridge $home, $f16);
    };
    // A backend whose element type is data alone computes for itself.
    ($home:ty) => {
        impl MixedBackend for $home {
            type Bf16 = $home;
            type F16 = $home;
        }
        mixed_backend!(@bridge $home, $home);
    };
    (@bridge $home:ty, $compute:ty) => {
        impl ComputeBackend<$home> for $compute {
            fn bring(x: FloatTensor<$home>, dtype: FloatDType) -> FloatTensor<Self> {
                as_type::<Self>(x, dtype)
            }

            fn give(x: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<$home> {
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

/// The tensor in type `dtype`, itself where it has it.
pub(super) fn as_type<B: Backend>(x: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    if FloatDType::from(x.dtype()) == dtype { x } else { B::float_cast(x, dtype) }
}

/// [`Precision::down`] for tensors.
pub fn down<P: Precision<B>, B: TrainBackend, const D: usize>(x: Tensor<B, D>) -> Tensor<P::Compute, D> {
    Tensor::from_primitive(TensorPrimitive::Float(P::down(x.into_primitive().tensor())))
}

/// [`Precision::across`] for tensors.
pub fn across<P: Precision<B>, B: TrainBackend, const D: usize>(x: Tensor<B, D>) -> Tensor<P::Compute, D> {
    Tensor::from_primitive(TensorPrimitive::Float(P::across(x.into_primitive().tensor())))
}

/// [`Precision::up`] for tensors.
pub fn up<P: Precision<B>, B: TrainBackend, const D: usize>(x: Tensor<P::Compute, D>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(P::up(x.into_primitive().tensor())))
}
