//! Kiln's own convolutions on LibTorch's CPU tensors, which are converted to NHWC if necessary.

use burn::backend::libtorch::TchTensor;
use burn::tensor::TensorMetadata;
use tch::{Device, Kind, Tensor};

use super::memory::{parallel_for, uninit_mut, values};
use crate::ops::host_conv::HostConv;
use crate::ops::host_epilogue::HostEpilogue;
use crate::ops::sliding::Sliding;

/// The plan of Kiln's own convolution, if it is the fastest.
pub(super) fn plan(x: &TchTensor, weight: &TchTensor, sliding: Sliding) -> Option<HostConv> {
    let is_ours = |tensor: &Tensor| tensor.device() == Device::Cpu && tensor.kind() == Kind::Float;
    let are_ours = is_ours(&x.tensor) && is_ours(&weight.tensor);
    let plan = || HostConv::new(&x.shape(), &weight.shape(), sliding, parallel_for);
    are_ours.then(plan).filter(HostConv::beats_one_dnn)
}

pub(super) fn forward(plan: &HostConv, x: &TchTensor, weight: &TchTensor, epilogue: Option<HostEpilogue>) -> TchTensor {
    let (x, weight) = (to_nhwc(x), weight.tensor.contiguous());
    let mut output = empty_nhwc(plan.output());
    plan.forward(values(&x), values(&weight), epilogue, uninit_mut(&mut output));
    from_nhwc(output)
}

pub(super) fn input_gradient(plan: &HostConv, weight: &TchTensor, gradient: &TchTensor) -> TchTensor {
    let (gradient, weight) = (to_nhwc(gradient), weight.tensor.contiguous());
    let mut output = empty_nhwc(plan.input());
    plan.input_gradient(values(&weight), values(&gradient), uninit_mut(&mut output));
    from_nhwc(output)
}

pub(super) fn weight_gradient(plan: &HostConv, x: &TchTensor, weight: &TchTensor, gradient: &TchTensor) -> TchTensor {
    let (x, gradient) = (to_nhwc(x), to_nhwc(gradient));
    let mut output = TchTensor::new(Tensor::empty(weight.tensor.size(), (Kind::Float, Device::Cpu)));
    plan.weight_gradient(values(&x), values(&gradient), uninit_mut(&mut output));
    output
}

/// Contiguous `[batch, height, width, channels]`.
pub(super) fn to_nhwc(images: &TchTensor) -> Tensor {
    images.tensor.permute([0, 2, 3, 1]).contiguous()
}

/// The inverse of [`to_nhwc`], as a view.
pub(super) fn from_nhwc(images: TchTensor) -> TchTensor {
    TchTensor::new(images.tensor.permute([0, 3, 1, 2]))
}

/// Uninitialised NHWC images of this size.
fn empty_nhwc(size: [usize; 4]) -> TchTensor {
    TchTensor::new(Tensor::empty(size.map(|size| size as i64), (Kind::Float, Device::Cpu)))
}
