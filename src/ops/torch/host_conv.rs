//! Kiln's own convolutions on LibTorch's CPU tensors, which are converted to NHWC if necessary.

use burn::backend::libtorch::TchTensor;
use burn::tensor::TensorMetadata;
use kiln_kernels::{Convolution, Epilogue as HostEpilogue};
use tch::{Device, Kind, Tensor};

use super::memory::{parallel_for, uninit_mut, values};
use crate::sliding::Sliding;

/// The plan of Kiln's own convolution, if it is the fastest.
pub(super) fn plan(x: &TchTensor, weight: &TchTensor, sliding: Sliding) -> Option<Convolution> {
    let is_ours = |tensor: &Tensor| tensor.device() == Device::Cpu && tensor.kind() == Kind::Float;
    let are_ours = sliding.groups == 1 && is_ours(&x.tensor) && is_ours(&weight.tensor);
    let plan = || sliding.plan(&x.shape(), &weight.shape(), parallel_for);
    are_ours.then(plan).filter(beats_one_dnn)
}

/// Whether it is faster than oneDNN: by Winograd's algorithm, and for small maps, on which few of oneDNN's blocks are
/// full (batches of 32 and 64, one and two threads of a Xeon with AVX-512).
fn beats_one_dnn(plan: &Convolution) -> bool {
    let g = &plan.geometry;
    let is_small = !plan.is_direct && g.taps() > 1 && g.pixels() <= 4;
    plan.takes_epilogue() || (is_small && g.inputs.is_multiple_of(16) && g.outputs.is_multiple_of(16))
}

pub(super) fn forward(
    plan: &Convolution,
    x: &TchTensor,
    weight: &TchTensor,
    epilogue: Option<HostEpilogue>,
) -> TchTensor {
    let (x, weight) = (to_nhwc(x), weight.tensor.contiguous());
    let mut output = empty_nhwc(plan.output());
    plan.forward(values(&x), values(&weight), epilogue, uninit_mut(&mut output));
    from_nhwc(output)
}

pub(super) fn input_gradient(plan: &Convolution, weight: &TchTensor, gradient: &TchTensor) -> TchTensor {
    let (gradient, weight) = (to_nhwc(gradient), weight.tensor.contiguous());
    let mut output = empty_nhwc(plan.input());
    plan.input_gradient(values(&weight), values(&gradient), uninit_mut(&mut output));
    from_nhwc(output)
}

pub(super) fn weight_gradient(
    plan: &Convolution,
    x: &TchTensor,
    weight: &TchTensor,
    gradient: &TchTensor,
) -> TchTensor {
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
