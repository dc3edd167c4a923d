//! Copies flat tensors between devices and the host: several at once, since on a GPU every copy waits for the device.

use burn::tensor::Tensor;

use super::device::HostBackend;
use crate::ops::{primitive, tensor};

/// A vector on a device.
pub(super) fn upload<B: HostBackend>(values: &[f32], device: &B::Device) -> Tensor<B, 1> {
    tensor(B::from_host(values, device))
}

/// The values of all tensors, one after the other, in the memory of an empty vector.
pub(super) fn download<B: HostBackend>(mut values: Vec<f32>, mut tensors: Vec<Tensor<B, 1>>) -> Vec<f32> {
    if tensors.len() > 1 && !B::is_processor() {
        tensors = vec![Tensor::cat(tensors, 0)];
    }
    values.reserve_exact(tensors.iter().map(|tensor| tensor.dims()[0]).sum());
    for tensor in tensors {
        B::append_to(primitive(tensor), &mut values);
    }
    values
}

/// The inverse of [`download`].
pub(super) fn unpack<B: HostBackend>(values: &[f32], lengths: &[usize], device: &B::Device) -> Vec<Tensor<B, 1>> {
    let whole = (!B::is_processor()).then(|| upload::<B>(values, device));
    let mut end = 0;
    let mut take = |length: usize| {
        let range = end..end + length;
        end = range.end;
        match &whole {
            Some(whole) => whole.clone().slice(range),
            None => upload(&values[range], device),
        }
    };
    lengths.iter().map(|length| take(*length)).collect()
}
