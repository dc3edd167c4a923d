//! Kernels of convolutions in the type and the layout of their products, all of a network by few kernels of the device.

use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;

use super::arena::most_inputs;
use super::fusion::{FusionTensor, queue_many};
use super::row_layout::{arguments, images, units};

/// Values between the starts of two weights in memory are a multiple of this.
const ALIGNMENT: usize = 128;

/// The weights `[outputs, inputs, kernel_height, kernel_width]`, of one type, as `dtype` with the inputs innermost: the
/// body of [`ConvOps::conv_weights`](crate::ConvOps::conv_weights).
pub(super) fn laid<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement>(
    weights: Vec<FusionTensor<R, F, I, E>>,
    dtype: DType,
) -> Vec<FusionTensor<R, F, I, E>> {
    if weights.is_empty() {
        return weights;
    }
    let outputs = weights.iter().map(|weight| (weight.shape(), dtype)).collect();
    queue_many::<CubeBackend<R, F, I, E>>("rows of weights", weights, outputs, move |weights| {
        let most = most_inputs(&weights[0].client);
        weights.chunks(most).flat_map(|group| together(group, dtype)).collect()
    })
}

/// By one kernel.
fn together<R: CubeRuntime>(weights: &[CubeTensor<R>], dtype: DType) -> Vec<CubeTensor<R>> {
    let (client, device, from) = (weights[0].client.clone(), weights[0].device.clone(), weights[0].dtype);
    let lengths = || weights.iter().map(|weight| weight.shape().num_elements());
    let total = lengths().map(|length| length.next_multiple_of(ALIGNMENT)).sum();
    let whole = empty_device_contiguous_dtype(client.clone(), device.clone(), Shape::new([total]), dtype);
    let (cubes, dim) = units(&client, lengths().max().unwrap_or_default());
    lay::launch::<R>(
        &client,
        cubes,
        dim,
        arguments(weights.iter().cloned()),
        whole.clone().into_tensor_arg(),
        weights.len(),
        from.into(),
        dtype.into(),
    );
    let mut start = 0;
    let view = |weight: &CubeTensor<R>| {
        let [outputs, inputs, down, across] = weight.shape().dims();
        let handle = whole.handle.clone().offset_start((start * dtype.size()) as u64);
        start += weight.shape().num_elements().next_multiple_of(ALIGNMENT);
        let rows = Shape::new([outputs, down, across, inputs]);
        images(CubeTensor::new_contiguous(client.clone(), device.clone(), rows, handle, dtype))
    };
    weights.iter().map(view).collect()
}

/// Copies each of `weights` `[output, input, row, column]` to `whole` as `[output, row, column, input]`, one after the
/// other.
#[cube(launch)]
fn lay<S: Float, E: Float>(
    weights: &Sequence<Tensor<S>>,
    whole: &mut Tensor<E>,
    #[comptime] count: usize,
    #[define(S)] _from: StorageType,
    #[define(E)] _dtype: StorageType,
) {
    let place = ABSOLUTE_POS;
    let mut start = 0;
    #[unroll]
    for at in 0..count {
        let weight = weights[at];
        let (inputs, down, across) = (weight.shape(1), weight.shape(2), weight.shape(3));
        let length = weight.shape(0) * inputs * down * across;
        if place < length {
            let input = place % inputs * weight.stride(1);
            let column = place / inputs % across * weight.stride(3);
            let row = place / (inputs * across) % down * weight.stride(2);
            let output = place / (inputs * across * down) * weight.stride(0);
            whole[start + place] = E::cast_from(weight[output + row + column + input]);
        }
        start += length.div_ceil(ALIGNMENT) * ALIGNMENT;
    }
}
