//! Copies flat tensors between devices and the host: several at once, since on a GPU every copy waits for the device.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{DType, Tensor, TensorData, TensorMetadata, read_sync};

use super::host::HostOps;
use super::traffic::{reading, writing};
use super::{primitive, tensor};

pub fn upload<B: HostOps>(values: &[f32], device: &B::Device) -> Tensor<B, 1> {
    tensor(B::from_host(values, device))
}

/// The values of all tensors, one after the other, in the memory of an empty vector.
pub fn download<B: HostOps>(mut values: Vec<f32>, mut tensors: Vec<Tensor<B, 1>>) -> Vec<f32> {
    if tensors.len() > 1 && !B::is_processor() {
        tensors = vec![Tensor::cat(tensors, 0)];
    }
    values.reserve_exact(tensors.iter().map(|tensor| tensor.dims()[0]).sum());
    for tensor in tensors {
        B::append_to(primitive(tensor), &mut values);
    }
    values
}

pub fn download_each<B: HostOps>(tensors: Vec<Tensor<B, 1>>) -> Vec<Vec<f32>> {
    if B::is_processor() {
        return tensors.into_iter().map(|tensor| download(Vec::new(), vec![tensor])).collect();
    }
    let lengths: Vec<usize> = tensors.iter().map(|tensor| tensor.dims()[0]).collect();
    let values = download(Vec::new(), tensors);
    let mut rest = &values[..];
    let mut take = |length| rest.split_off(..length).expect("the values of all tensors are there").to_vec();
    lengths.into_iter().map(&mut take).collect()
}

/// Lets `act` read the values of a vector, copied to the host if they are not in its memory.
pub fn with_values<B: HostOps, R>(vector: Tensor<B::Below, 1>, act: impl FnOnce(&[f32]) -> R) -> R {
    let mut vector = primitive(vector);
    if let Some(values) = B::values_mut(&mut vector) {
        return act(values);
    }
    let _copy = reading(vector.shape().num_elements(), DType::F32);
    #[expect(clippy::disallowed_methods, reason = "the way of a device's tensors to other processes")]
    let data = read_sync(B::Below::float_into_data(vector)).expect("a device that computes can be read");
    act(data.as_slice().expect("vectors are f32"))
}

/// A vector of these values.
pub fn from_values<B: Backend>(values: Vec<f32>, device: &B::Device) -> Tensor<B, 1> {
    let length = values.len();
    let _copy = writing(length, DType::F32);
    Tensor::from_data(TensorData::new(values, [length]), device)
}
