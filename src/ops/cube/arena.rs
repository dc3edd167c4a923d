//! Vectors of several tensors on CubeCL, made by few kernels.

use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::client::ComputeClient;
use cubecl::prelude::*;

use super::fusion::{FusionTensor, queue, queue_all};
use super::row_layout::{arguments, units};
use crate::ARENA_ALIGNMENT;

/// Most tensors that one kernel copies; devices limit them, too.
const MOST: usize = 24;

/// Bindings of a kernel in addition to its inputs.
const OTHERS: usize = 3;

/// The body of [`HostOps::side_by_side`](crate::HostOps::side_by_side).
pub(super) fn side_by_side<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement>(
    vectors: Vec<FusionTensor<R, F, I, E>>,
) -> FusionTensor<R, F, I, E> {
    let total = vectors.iter().map(|vector| filled(vector.shape().num_elements())).sum();
    let outputs = [(Shape::new([total]), DType::F32)];
    let [whole] = queue_all::<CubeBackend<R, F, I, E>, _>("side by side", vectors, outputs, move |vectors| {
        let (client, device) = (vectors[0].client.clone(), vectors[0].device.clone());
        let whole = empty_device_contiguous_dtype(client.clone(), device, Shape::new([total]), DType::F32);
        let most = most_inputs(&client);
        let mut start = 0;
        let vectors: Vec<CubeTensor<R>> = vectors.into_iter().map(into_contiguous).collect();
        for group in vectors.chunks(most) {
            let lengths: Vec<usize> = group.iter().map(|vector| filled(vector.shape().num_elements())).collect();
            let longest = lengths.iter().copied().max().unwrap_or_default();
            let (cubes, dim) = units(&client, longest);
            gather::launch::<R>(
                &client,
                cubes,
                dim,
                arguments(group.iter().cloned()),
                whole.clone().into_tensor_arg(),
                start,
                lengths.clone(),
            );
            start += lengths.iter().sum::<usize>();
        }
        [whole]
    });
    whole
}

/// The body of [`HostOps::part`](crate::HostOps::part): a view.
pub(super) fn part<R: CubeRuntime, F: FloatElement, I: IntElement, E: BoolElement>(
    whole: FusionTensor<R, F, I, E>,
    start: usize,
    length: usize,
) -> FusionTensor<R, F, I, E> {
    let like = (Shape::new([length]), DType::F32);
    let [part] = queue::<CubeBackend<R, F, I, E>, _, _>("part", [whole], [like], move |[whole]| {
        let CubeTensor { client, device, dtype, handle, .. } = into_contiguous(whole);
        let handle = handle.offset_start((start * dtype.size()) as u64);
        [CubeTensor::new_contiguous(client, device, Shape::new([length]), handle, dtype)]
    });
    part
}

/// Tensors that one kernel can copy.
pub(super) fn most_inputs<R: CubeRuntime>(client: &ComputeClient<R>) -> usize {
    (client.properties().hardware.max_bindings as usize).saturating_sub(OTHERS).clamp(1, MOST)
}

/// The place that a tensor of this length takes.
fn filled(length: usize) -> usize {
    length.next_multiple_of(ARENA_ALIGNMENT)
}

/// Copies `parts` to `whole` from `start` on, one after the other, each filled up with zeros to its length in
/// `lengths`.
#[cube(launch)]
fn gather(parts: &Sequence<Tensor<f32>>, whole: &mut Tensor<f32>, start: usize, #[comptime] lengths: Vec<usize>) {
    let place = ABSOLUTE_POS;
    #[unroll]
    for part in 0..comptime!(lengths.len()) {
        let length = comptime!(lengths[part]);
        let before = comptime!(lengths[..part].iter().sum::<usize>());
        if place < length {
            let mut value = f32::new(0.0);
            if place < parts[part].len() {
                value = parts[part][place];
            }
            whole[start + before + place] = value;
        }
    }
}
