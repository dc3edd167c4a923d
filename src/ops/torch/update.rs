//! Updates and transfers of LibTorch's tensors: in the host's memory by the loops of [`update`], on CUDA by
//! ATen's fused kernel.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use burn::backend::LibTorch;
use burn::backend::libtorch::{TchElement, TchTensor};
use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{DType, TensorMetadata};
use kiln_kernels::update::{self, Gradient};

use super::cuda::{Event, cuda_devices, upload};
use super::memory::{exclusive, parallel_for, uninit_mut, values, values_mut};
use super::{Pointer, borrowed, check};
use crate::host::{HostOps, Later, Memory};
use crate::traffic::{late_reading, reading};
use crate::update::{AdamW, Sgd, UpdateOps};

unsafe extern "C" {
    fn kiln_sgd(
        param: Pointer,
        gradient: Pointer,
        velocity: Pointer,
        rate: f64,
        momentum: f64,
        weight_decay: f64,
        nesterov: c_int,
        first: c_int,
    ) -> *mut c_char;
    fn kiln_adamw(
        param: Pointer,
        gradient: Pointer,
        first: Pointer,
        second: Pointer,
        rate: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
        weight_decay: f64,
        step: f64,
    ) -> *mut c_char;
}

impl UpdateOps for LibTorch<f32> {
    fn sgd(
        param: TchTensor,
        gradient: TchTensor,
        velocity: Option<TchTensor>,
        step: &Sgd,
    ) -> (TchTensor, Option<TchTensor>) {
        let (first, remembers) = (velocity.is_none(), step.momentum != 0.0);
        let mut velocity = velocity.map(exclusive).or_else(|| remembers.then(|| zeros_like(&param)));
        if param.tensor.device() == tch::Device::Cpu {
            let memory = velocity.as_mut().map(values_mut);
            let updated =
                updated(&param, gradient, |param, gradient| update::sgd(param, gradient, memory, step, parallel_for));
            return (updated, velocity);
        }
        let (param, gradient) = for_kernel(&param, &gradient);
        let (rate, momentum, decay) = (step.rate, step.momentum, step.weight_decay);
        let (nesterov, first) = (c_int::from(step.nesterov), c_int::from(first));
        let memory = velocity.as_ref().map_or(null_mut(), borrowed);
        // SAFETY: all three live until after the call; the memory that it writes has no other reference.
        check(unsafe {
            kiln_sgd(borrowed(&param), borrowed(&gradient), memory, rate, momentum, decay, nesterov, first)
        });
        (param, velocity)
    }

    fn adamw(
        param: TchTensor,
        gradient: TchTensor,
        moments: Option<[TchTensor; 2]>,
        step: &AdamW,
    ) -> (TchTensor, [TchTensor; 2]) {
        let moments = moments.unwrap_or_else(|| [zeros_like(&param), zeros_like(&param)]);
        let mut moments = moments.map(exclusive);
        if param.tensor.device() == tch::Device::Cpu {
            let memory = moments.each_mut().map(values_mut);
            let updated =
                updated(&param, gradient, |param, gradient| update::adamw(param, gradient, memory, step, parallel_for));
            return (updated, moments);
        }
        let (param, gradient) = for_kernel(&param, &gradient);
        adamw_by_kernel(&param, &gradient, &moments, step);
        (param, moments)
    }

    fn norm(x: TchTensor) -> TchTensor {
        if x.tensor.device() != tch::Device::Cpu {
            return TchTensor::new(x.tensor.norm().view([1]));
        }
        TchTensor::new(tch::Tensor::from_slice(&[update::norm(values(&x.tensor.contiguous()), parallel_for) as f32]))
    }
}

fn zeros_like(param: &TchTensor) -> TchTensor {
    TchTensor::new(param.tensor.zeros_like())
}

/// The parameter that `update` writes: to the memory of the gradient, unless somebody else has that, too.
fn updated(param: &TchTensor, gradient: TchTensor, update: impl FnOnce(&[f32], Gradient<'_>)) -> TchTensor {
    let param = param.tensor.contiguous();
    if gradient.can_mut() {
        let mut gradient = exclusive(gradient);
        update(values(&param), Gradient::Own(values_mut(&mut gradient)));
        return gradient;
    }
    let gradient = gradient.tensor.contiguous();
    let mut updated = TchTensor::new(gradient.empty_like());
    update(values(&param), Gradient::Shared(values(&gradient), uninit_mut(&mut updated)));
    updated
}

/// What a kernel of ATen's updates: a copy of the parameter, since the model still holds the old values.
fn for_kernel(param: &TchTensor, gradient: &TchTensor) -> (TchTensor, TchTensor) {
    (TchTensor::new(param.tensor.copy()), TchTensor::new(gradient.tensor.contiguous()))
}

/// Changes `param` and the moments, which have no other references.
fn adamw_by_kernel(param: &TchTensor, gradient: &TchTensor, moments: &[TchTensor; 2], step: &AdamW) {
    let ([beta1, beta2], [first, second]) = (step.betas, moments.each_ref().map(borrowed));
    let (param, gradient, number) = (borrowed(param), borrowed(gradient), step.step as f64);
    // SAFETY: all four live until after the call.
    check(unsafe {
        kiln_adamw(param, gradient, first, second, step.rate, beta1, beta2, step.eps, step.weight_decay, number)
    });
}

impl<E: TchElement> HostOps for LibTorch<E> {
    const CAN_SHARE: bool = true;

    type Below = Self;

    fn is_processor() -> bool {
        cuda_devices() == 0
    }

    fn has_channels_innermost(x: &TchTensor) -> bool {
        !x.tensor.is_contiguous() && x.tensor.dim() == 4 && x.tensor.permute([0, 2, 3, 1]).is_contiguous()
    }

    fn share(x: TchTensor) -> TchTensor {
        x
    }

    fn adopt(x: TchTensor, device: &Self::Device) -> TchTensor {
        Self::float_to_device(x, device)
    }

    fn add(left: TchTensor, right: TchTensor) -> TchTensor {
        if left.tensor.device() != tch::Device::Cpu {
            let right = Self::float_to_device(right, &Self::float_device(&left));
            return Self::float_add(left, right);
        }
        let mut left = exclusive(left);
        update::add(values_mut(&mut left), values(&right.tensor.contiguous()), parallel_for);
        left
    }

    /// Not exclusive: the caller writes only to tensors that it has just made.
    fn memory(x: &mut TchTensor) -> Option<Memory> {
        assert!(x.tensor.is_contiguous(), "memory is that of a contiguous tensor");
        Some(Memory { pointer: x.tensor.data_ptr(), length: x.tensor.numel(), dtype: x.dtype() })
    }

    fn values_mut(x: &mut TchTensor) -> Option<&mut [f32]> {
        if x.tensor.device() != tch::Device::Cpu {
            return None;
        }
        if !(x.tensor.is_contiguous() && x.can_mut()) {
            *x = exclusive(x.clone());
        }
        Some(values_mut(x))
    }

    fn append_to(x: TchTensor, host: &mut Vec<f32>) {
        let _copy = reading(x.tensor.numel(), DType::F32);
        host.extend_from_slice(values(&x.tensor.to_device(tch::Device::Cpu).contiguous()));
    }

    fn from_host(values: &[f32], device: &Self::Device) -> TchTensor {
        TchTensor::new(upload(values, &[values.len() as i64], (*device).into()))
    }

    fn integers(values: &[i32], device: &Self::Device) -> TchTensor {
        TchTensor::new(upload(values, &[values.len() as i64], (*device).into()))
    }

    fn read_later(x: TchTensor) -> Later {
        // Into pinned memory, after what is queued now.
        let host = x.tensor.internal_to_copy((tch::Kind::Float, tch::Device::Cpu), true);
        let event = Event::behind(&x.tensor);
        Box::new(move || {
            let _copy = late_reading(host.numel(), DType::F32);
            event.wait();
            values(&host.contiguous()).to_vec()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a processor ATen's kernel is not used, but there.
    #[test]
    fn atens_kernel_for_adamw_does_what_the_loop_does() {
        let noise = |seed: i64| {
            let values: Vec<f32> = (0..1000).map(|i| ((i * 37 + seed) % 101) as f32 / 50.0 - 1.0).collect();
            TchTensor::new(tch::Tensor::from_slice(&values))
        };
        let (mut param, kernel) = (noise(1), noise(1));
        let mut moments = None;
        let by_kernel = [zeros_like(&kernel), zeros_like(&kernel)];
        for step in 1..=3 {
            let step = AdamW { rate: 0.01, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.1, step };
            let gradient = noise(10 * step.step as i64);
            adamw_by_kernel(&kernel, &gradient, &by_kernel, &step);
            let (updated, updated_moments) = LibTorch::adamw(param, gradient, moments, &step);
            (param, moments) = (updated, Some(updated_moments));
        }
        let is_near = |one: &TchTensor, other: &TchTensor| one.tensor.allclose(&other.tensor, 1e-6, 1e-7, false);
        assert!(is_near(&param, &kernel));
        assert!(moments.iter().flatten().zip(&by_kernel).all(|(one, other)| is_near(one, other)));
    }
}
