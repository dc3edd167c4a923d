//! Rounding to bf16 in f32: WGSL has no bf16, and CUDA needs no tensor between two casts.

use burn::tensor::TensorMetadata;
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::row_layout::units;

/// The body of [`HostOps::rounded`](crate::HostOps::rounded).
pub(super) fn rounded<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    let x = into_contiguous(x);
    let (client, length) = (x.client.clone(), x.shape().num_elements());
    let made = empty_device_contiguous_dtype(client.clone(), x.device.clone(), x.shape(), x.dtype);
    let (cubes, dim) = units(&client, length);
    round::launch::<R>(&client, cubes, dim, x.into_tensor_arg(), made.clone().into_tensor_arg(), length);
    made
}

/// A value per unit. The upper half of an f32 is a bf16; what lies in the middle goes to the even one.
#[cube(launch)]
fn round(x: &Tensor<f32>, made: &mut Tensor<f32>, length: usize) {
    if ABSOLUTE_POS >= length {
        terminate!();
    }
    let value = x[ABSOLUTE_POS];
    let bits = u32::reinterpret(value);
    let rounded = (bits + 0x7fff_u32 + ((bits >> 16) & 1)) & 0xffff_0000_u32;
    // Added to, what is no number would become another value.
    let is_number = (bits & 0x7fff_ffff) <= 0x7f80_0000;
    made[ABSOLUTE_POS] = select(is_number, f32::reinterpret(rounded), value);
}
