//! Kiln's own convolutions on LibTorch's CPU tensors, which are converted to NHWC if necessary.

use burn::backend::libtorch::TchTensor;
use burn::tensor::TensorMetadata;
use kiln_kernels::{Activation, Convolution, Epilogue as HostEpilogue};
use tch::{Device, Kind, Tensor};

use super::memory::{Value, is_activation, of_kind, parallel_for, uninit_mut, values};
use super::unit::Unit;
use crate::sliding::Sliding;

/// The plan of Kiln's own convolution, if it is the fastest.
pub(super) fn plan(x: &TchTensor, weight: &TchTensor, sliding: Sliding) -> Option<Convolution> {
    let are_here = [x, weight].iter().all(|tensor| tensor.tensor.device() == Device::Cpu);
    let are_ours = are_here && sliding.groups == 1 && is_activation(x.tensor.kind());
    let plan = || sliding.plan(&x.shape(), &weight.shape(), parallel_for);
    are_ours.then(plan).filter(|plan| beats_one_dnn(plan, x.tensor.kind()))
}

/// Whether it is faster than oneDNN: by Winograd's algorithm, and for small maps, on which few of oneDNN's blocks are
/// full (batches of 32 and 64, one and two threads of a Xeon with AVX-512). In a half type without instructions always,
/// and on a matrix unit.
fn beats_one_dnn(plan: &Convolution, kind: Kind) -> bool {
    let g = &plan.geometry;
    let is_small = !plan.is_direct && g.taps() > 1 && g.pixels() <= 4;
    let is_fast = plan.takes_epilogue() || (is_small && g.inputs.is_multiple_of(16) && g.outputs.is_multiple_of(16));
    match Unit::of(kind) {
        Unit::Matrix => plan.uses_matrix_unit(),
        // oneDNN's dot products of bf16 are as fast as the few multiplications of a strided layer.
        Unit::Vector => is_fast && (kind == Kind::Float || g.stride == 1),
        Unit::None => true,
    }
}

pub(super) fn forward<T: Activation + Value>(
    plan: &Convolution,
    x: &TchTensor,
    weight: &TchTensor,
    epilogue: Option<HostEpilogue<T>>,
) -> TchTensor {
    let (x, weight) = (to_nhwc(x), full(weight));
    let mut output = empty_nhwc(plan.output(), &x);
    plan.forward::<T>(values(&x), values(&weight), epilogue, uninit_mut(&mut output));
    from_nhwc(output)
}

pub(super) fn input_gradient(plan: &Convolution, weight: &TchTensor, gradient: &TchTensor) -> TchTensor {
    let (gradient, weight) = (to_nhwc(gradient), full(weight));
    let mut output = empty_nhwc(plan.input(), &gradient);
    of_kind!(gradient.kind(), T => {
        plan.input_gradient::<T>(values(&weight), values(&gradient), uninit_mut(&mut output));
    });
    from_nhwc(output)
}

/// In f32.
pub(super) fn weight_gradient(
    plan: &Convolution,
    x: &TchTensor,
    weight: &TchTensor,
    gradient: &TchTensor,
) -> TchTensor {
    let (x, gradient) = (to_nhwc(x), to_nhwc(gradient));
    let mut output = TchTensor::new(Tensor::empty(weight.tensor.size(), (Kind::Float, Device::Cpu)));
    of_kind!(x.kind(), T => plan.weight_gradient::<T>(values(&x), values(&gradient), uninit_mut(&mut output)));
    output
}

/// A contiguous kernel in f32.
fn full(weight: &TchTensor) -> Tensor {
    weight.tensor.to_kind(Kind::Float).contiguous()
}

/// Contiguous `[batch, height, width, channels]`.
pub(super) fn to_nhwc(images: &TchTensor) -> Tensor {
    images.tensor.permute([0, 2, 3, 1]).contiguous()
}

/// The inverse of [`to_nhwc`], as a view.
pub(super) fn from_nhwc(images: TchTensor) -> TchTensor {
    TchTensor::new(images.tensor.permute([0, 3, 1, 2]))
}

/// Uninitialised NHWC images of this size and the kind of `like`.
fn empty_nhwc(size: [usize; 4], like: &Tensor) -> TchTensor {
    TchTensor::new(Tensor::empty(size.map(|size| size as i64), (like.kind(), Device::Cpu)))
}
