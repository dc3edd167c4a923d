//! The kernels of `ops/winograd` on LibTorch's CPU tensors, which are converted to NHWC if necessary.

use burn::backend::libtorch::TchTensor;
use burn::tensor::TensorMetadata;
use tch::{Device, Kind, Tensor};

use super::memory::{parallel_for, uninit_mut, values};
use crate::ops::host_epilogue::HostEpilogue;
use crate::ops::sliding::Sliding;
use crate::ops::winograd::Winograd;

/// The plan for Winograd's algorithm, if it applies.
pub(super) fn plan(x: &TchTensor, weight: &TchTensor, sliding: Sliding) -> Option<Winograd> {
    let is_ours = |tensor: &Tensor| tensor.device() == Device::Cpu && tensor.kind() == Kind::Float;
    let are_ours = is_ours(&x.tensor) && is_ours(&weight.tensor);
    are_ours.then(|| sliding.winograd(&x.shape(), &weight.shape(), parallel_for)).flatten()
}

pub(super) fn forward(plan: &Winograd, x: &TchTensor, weight: &TchTensor, epilogue: Option<HostEpilogue>) -> TchTensor {
    let (x, weight) = (to_nhwc(x), weight.tensor.contiguous());
    let mut output = empty_nhwc(&x, weight.size()[0]);
    plan.forward_with(values(&x), values(&weight), epilogue, uninit_mut(&mut output));
    from_nhwc(output)
}

pub(super) fn input_gradient(plan: &Winograd, x: &TchTensor, weight: &TchTensor, gradient: &TchTensor) -> TchTensor {
    let (gradient, weight) = (to_nhwc(gradient), weight.tensor.contiguous());
    let mut output = empty_nhwc(&gradient, x.tensor.size()[1]);
    plan.input_gradient(values(&gradient), values(&weight), uninit_mut(&mut output));
    from_nhwc(output)
}

pub(super) fn weight_gradient(plan: &Winograd, x: &TchTensor, weight: &TchTensor, gradient: &TchTensor) -> TchTensor {
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

/// An uninitialised tensor for NHWC images of the same size and type with `channels` channels.
pub(super) fn empty_nhwc(images: &Tensor, channels: i64) -> TchTensor {
    let mut size = images.size();
    size[3] = channels;
    TchTensor::new(Tensor::empty(size, (images.kind(), Device::Cpu)))
}
