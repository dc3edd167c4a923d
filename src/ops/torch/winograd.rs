//! The kernels of `ops/winograd` on LibTorch's tensors in the host's memory: those whose channels lie innermost are used
//! as they are, others are brought into that order.

use burn::backend::libtorch::TchTensor;
use burn::tensor::TensorMetadata;
use tch::{Device, Kind, Tensor};

use super::memory::{each, room, values};
use crate::ops::sliding::Sliding;
use crate::ops::winograd::Winograd;

/// How the kernels take this convolution, if they do.
pub(super) fn plan(x: &TchTensor, weight: &TchTensor, sliding: Sliding) -> Option<Winograd> {
    let is_ours = |tensor: &Tensor| tensor.device() == Device::Cpu && tensor.kind() == Kind::Float;
    let are_ours = is_ours(&x.tensor) && is_ours(&weight.tensor);
    are_ours.then(|| sliding.winograd(&x.shape(), &weight.shape(), each)).flatten()
}

pub(super) fn forward(plan: &Winograd, x: &TchTensor, weight: &TchTensor) -> TchTensor {
    let (x, weight) = (innermost(x), weight.tensor.contiguous());
    let mut output = alike(&x, weight.size()[0]);
    plan.forward(values(&x), values(&weight), room(&mut output));
    outermost(output)
}

pub(super) fn input_gradient(plan: &Winograd, x: &TchTensor, weight: &TchTensor, gradient: &TchTensor) -> TchTensor {
    let (gradient, weight) = (innermost(gradient), weight.tensor.contiguous());
    let mut output = alike(&gradient, x.tensor.size()[1]);
    plan.input_gradient(values(&gradient), values(&weight), room(&mut output));
    outermost(output)
}

pub(super) fn weight_gradient(plan: &Winograd, x: &TchTensor, weight: &TchTensor, gradient: &TchTensor) -> TchTensor {
    let (x, gradient) = (innermost(x), innermost(gradient));
    let mut output = TchTensor::new(Tensor::empty(weight.tensor.size(), (Kind::Float, Device::Cpu)));
    plan.weight_gradient(values(&x), values(&gradient), room(&mut output));
    output
}

/// `[batch, height, width, channels]` in memory.
pub(super) fn innermost(images: &TchTensor) -> Tensor {
    images.tensor.permute([0, 2, 3, 1]).contiguous()
}

/// As [`innermost`] gives it, seen as `[batch, channels, height, width]` again.
pub(super) fn outermost(images: TchTensor) -> TchTensor {
    TchTensor::new(images.tensor.permute([0, 3, 1, 2]))
}

/// For images of another number of channels.
pub(super) fn alike(images: &Tensor, channels: i64) -> TchTensor {
    let mut size = images.size();
    size[3] = channels;
    TchTensor::new(Tensor::empty(size, (Kind::Float, Device::Cpu)))
}
