//! The norm of a gradient on CubeCL, added up in an order that depends on its length alone.
//!
//! Burn's sums are tuned on each device, so two devices may add in different orders: replicas would clip by different
//! factors, or disagree on whether a step in f16 overflowed.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::Fusion;
use cubecl::prelude::*;

use super::fusion::queue;
use super::row_layout::units;
use crate::UpdateOps;

/// Sums that remain after each of the kernels.
const REMAINING: [usize; 3] = [1 << 16, 1 << 8, 1];

impl<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement> UpdateOps for Fusion<CubeBackend<R, F, I, E>> {
    fn norm(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let like = (Shape::new([1]), DType::F32);
        let [norm] = queue::<CubeBackend<R, F, I, E>, _, _>("norm", [x], [like], |[x]| {
            let length = x.shape().num_elements();
            let counts = REMAINING.into_iter().filter(|count| *count == 1 || *count < length);
            [counts.enumerate().fold(x, |values, (kernel, count)| add(values, count, kernel == 0))]
        });
        norm
    }
}

/// `count` sums of the values in `x`, or of their squares; the root of a single sum.
fn add<R: CubeRuntime>(x: CubeTensor<R>, count: usize, squares: bool) -> CubeTensor<R> {
    let x = into_contiguous(x);
    let client = x.client.clone();
    let sums = empty_device_contiguous_dtype(client.clone(), x.device.clone(), Shape::new([count]), DType::F32);
    let (cubes, dim) = units(&client, count);
    let length = x.shape().num_elements();
    every_nth::launch::<R>(
        &client,
        cubes,
        dim,
        x.into_tensor_arg(),
        sums.clone().into_tensor_arg(),
        length,
        count,
        squares,
        count == 1,
    );
    sums
}

/// A sum per unit: of every value whose place is the unit's modulo `count`, so that neighbours read neighbours.
#[cube(launch)]
fn every_nth(
    x: &Tensor<f32>,
    sums: &mut Tensor<f32>,
    length: usize,
    count: usize,
    #[comptime] squares: bool,
    #[comptime] root: bool,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let mut sum = f32::new(0.0);
    let mut at = ABSOLUTE_POS;
    while at < length {
        let value = x[at];
        if comptime!(squares) {
            sum += value * value;
        } else {
            sum += value;
        }
        at += count;
    }
    if comptime!(root) {
        sum = f32::sqrt(sum);
    }
    sums[ABSOLUTE_POS] = sum;
}
