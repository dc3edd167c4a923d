//! Flat tensors between devices and the host, where collectives work.

use burn::tensor::{Tensor, TensorData};

use super::device::HostBackend;

/// A vector on a device.
pub(super) fn upload<B: HostBackend>(values: Vec<f32>, device: &B::Device) -> Tensor<B, 1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), device)
}

/// All tensors' values, one after the other.
pub(super) fn download<B: HostBackend>(tensors: Vec<Tensor<B, 1>>) -> Vec<f32> {
    let total = tensors.iter().map(|tensor| tensor.dims()[0]).sum();
    let mut values = Vec::with_capacity(total);
    for tensor in tensors {
        let data = tensor.into_data();
        values.extend_from_slice(data.as_slice::<f32>().expect("gradients and weights are f32"));
    }
    values
}

/// The inverse of [`download`].
pub(super) fn unpack<B: HostBackend>(mut values: &[f32], lengths: &[usize], device: &B::Device) -> Vec<Tensor<B, 1>> {
    let mut take = |length: usize| {
        let (head, tail) = values.split_at(length);
        values = tail;
        upload(head.to_vec(), device)
    };
    lengths.iter().map(|length| take(*length)).collect()
}
