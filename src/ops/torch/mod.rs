//! LibTorch's fused kernels for operations that Burn composes of many: batch-norm, gradients of convolution and ReLU.
//!
//! `shim.cpp` binds those that tch does not bind in a usable form. All functions panic on an ATen error, as tch's own
//! do; a replica turns that into the run's error.

mod batch_norm;
mod cuda;
mod graph;
mod host_conv;
mod images;
mod memory;
mod norm_kernels;
#[cfg(target_os = "linux")]
mod openmp;
mod unit;
mod update;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use batch_norm::with_epilogue;
use burn::backend::LibTorch;
use burn::backend::libtorch::TchTensor;
use burn::tensor::ops::ModuleOps;
use burn::tensor::{Shape, TensorMetadata};
use host_conv::to_nhwc;
use kiln_kernels::{Convolution, Trim};
use tch::{Device, Kind, Tensor};

use super::batch_norm::BatchNormOps;
use super::branch::BranchOps;
use super::conv::{ConvOps, PreparedKernel, by_group};
use super::epilogue::Epilogue;
use super::gradient::GradientOps;
use super::pool::PoolOps;
use super::precision::as_type;
use super::sliding::Sliding;
use super::trim::{cropped, padded};
pub use cuda::{choose_kernels, cuda_devices};
pub use graph::{GRAPH_SYMBOLS, cuda_graph};
use memory::{of_kind, parallel_for, uninit_mut, values};
#[cfg(target_os = "linux")]
pub use openmp::bound_spinning;
use unit::Unit;
pub use unit::has_instructions;

type Pointer = *mut c_void;

unsafe extern "C" {
    fn kiln_convolution_backward(
        dx: *mut Pointer,
        dweight: *mut Pointer,
        gradient: Pointer,
        x: Pointer,
        weight: Pointer,
        stride: i64,
        padding: i64,
        groups: i64,
        mask: c_int,
    ) -> *mut c_char;
    fn kiln_in_layout_of(y: *mut Pointer, x: Pointer, model: Pointer) -> *mut c_char;
}

fn borrowed(tensor: &TchTensor) -> Pointer {
    tensor.tensor.as_ptr().cast_mut().cast()
}

/// Takes ownership of a tensor that the shim returned.
fn owned(pointer: Pointer) -> TchTensor {
    assert!(!pointer.is_null(), "the shim returns every tensor that was asked for");
    // SAFETY: the shim returns a new `at::Tensor` and gives up its ownership.
    TchTensor::new(unsafe { Tensor::from_ptr(pointer.cast()) })
}

/// ATen's message, if there is one.
fn result(message: *mut c_char) -> Result<(), String> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: the shim returns a string made by `strdup`, which the caller frees.
    Err(unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        libc::free(message.cast());
        text
    })
}

/// Panics with ATen's message, if there is one.
fn check(message: *mut c_char) {
    result(message).unwrap_or_else(|text| panic!("LibTorch: {text}"));
}

const INPUT: c_int = 1;
const WEIGHT: c_int = 2;

impl ConvOps for LibTorch<f32> {
    /// On a processor without instructions for a half type, ATen sums in that type.
    fn has_groups(x: &TchTensor) -> bool {
        x.tensor.device() != Device::Cpu || Unit::of(x.tensor.kind()) != Unit::None
    }

    /// On the CPU with direct convolutions, channels innermost make a step with the CIFAR stem 5 % faster; with the
    /// ImageNet stem 14 % at 224 pixels, 10 % at 96, 0 % at 64, and 9 % slower at 32. With Winograd's algorithm it is 5
    /// % faster at 32 and 8 % at 64. On CUDA it is for the half types' kernels (NVIDIA's advice, not measured).
    fn arranged(images: TchTensor, innermost: bool) -> TchTensor {
        let half = matches!(images.tensor.kind(), Kind::Half | Kind::BFloat16);
        if !(if images.tensor.device().is_cuda() { half } else { innermost }) {
            return images;
        }
        TchTensor::from_existing(to_nhwc(&images).permute([0, 3, 1, 2]), images.storage)
    }

    fn conv_weight(weight: TchTensor, x: &TchTensor, sliding: Sliding) -> TchTensor {
        if !Self::has_groups(x) || host_conv::plan(x, &weight, sliding).is_some() {
            return weight;
        }
        let weight = as_type::<Self>(weight, x.dtype().into());
        TchTensor::from_existing(in_layout_of(&weight, x), weight.storage)
    }

    fn conv_forward([x, weight]: [TchTensor; 2], sliding: Sliding) -> TchTensor {
        match host_conv::plan(&x, &weight, sliding) {
            Some(plan) => of_kind!(x.tensor.kind(), T => host_conv::forward::<T>(&plan, &x, &weight, None)),
            None => Self::conv2d(x, weight, None, sliding.options()),
        }
    }

    fn convolution_normalized(
        x: TchTensor,
        PreparedKernel { weight, sliding }: PreparedKernel<Self>,
        factors: [TchTensor; 3],
        epilogue: Epilogue<TchTensor>,
    ) -> TchTensor {
        let Some(plan) = host_conv::plan(&x, &weight, sliding).filter(Convolution::takes_epilogue) else {
            let output = by_group::<Self, 2>([x, weight], 1, sliding, Self::conv_forward);
            return Self::bn_normalize(output, factors, epilogue);
        };
        of_kind!(x.tensor.kind(), T => with_epilogue::<T, _>(factors, epilogue, |epilogue| {
            host_conv::forward(&plan, &x, &weight, Some(epilogue))
        }))
    }

    fn conv_weight_gradient([x, weight, gradient]: [TchTensor; 3], sliding: Sliding) -> TchTensor {
        if let Some(plan) = host_conv::plan(&x, &weight, sliding) {
            return host_conv::weight_gradient(&plan, &x, &weight, &gradient);
        }
        owned(convolution_backward(&x, &weight, &gradient, sliding, WEIGHT)[1])
    }

    fn conv_input_gradient([x, weight, gradient]: [TchTensor; 3], sliding: Sliding) -> TchTensor {
        if let Some(plan) = host_conv::plan(&x, &weight, sliding) {
            return host_conv::input_gradient(&plan, &weight, &gradient);
        }
        owned(convolution_backward(&x, &weight, &gradient, sliding, INPUT)[0])
    }

    fn conv_trimmed(weight: TchTensor, trim: &Trim) -> TchTensor {
        if !is_plain(&weight.tensor) {
            return cropped::<Self>(weight, trim);
        }
        let mut part = empty(Shape::new(trim.part()), &weight.tensor);
        match weight.tensor.kind() {
            Kind::Float => trim.crop::<f32>(values(&weight.tensor), uninit_mut(&mut part), parallel_for),
            _ => trim.crop::<u16>(values(&weight.tensor), uninit_mut(&mut part), parallel_for),
        }
        part
    }

    fn conv_untrimmed(gradient: TchTensor, trim: &Trim) -> TchTensor {
        let gradient = TchTensor::new(gradient.tensor.contiguous());
        if !is_plain(&gradient.tensor) {
            return padded::<Self>(gradient, trim);
        }
        let mut whole = empty(Shape::new(trim.whole), &gradient.tensor);
        match gradient.tensor.kind() {
            Kind::Float => trim.pad::<f32>(values(&gradient.tensor), uninit_mut(&mut whole), parallel_for),
            // The zero of both half types is all bits zero.
            _ => trim.pad::<u16>(values(&gradient.tensor), uninit_mut(&mut whole), parallel_for),
        }
        whole
    }
}

/// Whether the loops of [`Trim`] can process the tensor.
fn is_plain(tensor: &Tensor) -> bool {
    let is_known = matches!(tensor.kind(), Kind::Float | Kind::Half | Kind::BFloat16);
    tensor.device() == Device::Cpu && tensor.is_contiguous() && is_known
}

fn empty(shape: Shape, like: &Tensor) -> TchTensor {
    let shape: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
    TchTensor::new(Tensor::empty(shape, (like.kind(), like.device())))
}

/// `x` in the memory layout of `model`.
fn in_layout_of(x: &TchTensor, model: &TchTensor) -> Tensor {
    let mut arranged = null_mut();
    // SAFETY: the result is written before the call returns without a message.
    check(unsafe { kiln_in_layout_of(&mut arranged, borrowed(x), borrowed(model)) });
    owned(arranged).tensor
}

fn convolution_backward(
    x: &TchTensor,
    weight: &TchTensor,
    gradient: &TchTensor,
    sliding: Sliding,
    mask: c_int,
) -> [Pointer; 2] {
    let (mut dx, mut dweight) = (null_mut(), null_mut());
    let [stride, padding, groups] = [sliding.stride, sliding.padding, sliding.groups].map(|it| it as i64);
    let [gradient, x, weight] = [gradient, x, weight].map(borrowed);
    // SAFETY: as above.
    check(unsafe {
        kiln_convolution_backward(&mut dx, &mut dweight, gradient, x, weight, stride, padding, groups, mask)
    });
    [dx, dweight]
}

impl PoolOps for LibTorch<f32> {}

impl BranchOps for LibTorch<f32> {}

impl GradientOps for LibTorch<f32> {
    fn relu_gradient(output: TchTensor, gradient: TchTensor) -> TchTensor {
        let same = in_layout_of(&gradient, &output);
        let dx = if gradient.can_mut() && same.data_ptr() == gradient.tensor.data_ptr() {
            output.tensor.threshold_backward_grad_input(&same, &same, 0)
        } else {
            output.tensor.threshold_backward(&same, 0)
        };
        TchTensor::from_existing(dx, gradient.storage)
    }
}
