//! The CubeCL backends: Burn's kernels, fused by Burn, through the default bodies.

#[cfg(feature = "cuda")]
use burn::backend::Cuda;
#[cfg(feature = "wgpu")]
use burn::backend::Wgpu;
use burn::tensor::{bf16, f16};

use super::{BatchNormOps, ConvOps, HostOps, ReluOps, UpdateOps};

macro_rules! default_bodies {
    ($home:ty, $($half:ty),*) => {
        default_bodies!(@compute $home);
        $(default_bodies!(@compute $half);)*
        impl UpdateOps for $home {}
    };
    (@compute $backend:ty) => {
        impl BatchNormOps for $backend {}
        impl ConvOps for $backend {}
        impl HostOps for $backend {}
        impl ReluOps for $backend {}
    };
}

#[cfg(feature = "cuda")]
default_bodies!(Cuda<f32, i32>, Cuda<bf16, i32>, Cuda<f16, i32>);
#[cfg(feature = "wgpu")]
default_bodies!(Wgpu<f32, i32>, Wgpu<bf16, i32>, Wgpu<f16, i32>);
