//! Updates and transfers of LibTorch's tensors: in the host's memory by the loops of [`update`], on CUDA by
//! ATen's fused kernel. Parameters and what a rule remembers of them stay where they are.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use burn::backend::LibTorch;
use burn::backend::libtorch::TchTensor;
use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{DType, TensorMetadata};
use kiln_kernels::update::{self, Parameter};

use super::cuda::{Event, cuda_devices, upload};
use super::memory::{exclusive, parallel_for, values, values_mut};
use super::{Pointer, borrowed, check};
use crate::host::{HostOps, Later, Memory};
use crate::traffic::{late_reading, reading};
use crate::update::{AdamW, Sgd, UpdateOps, number};

unsafe extern "C" {
    fn kiln_sgd(
        param: Pointer,
        gradient: Pointer,
        velocity: Pointer,
        rate_there: Pointer,
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
        rate_there: Pointer,
        step_there: Pointer,
        rate: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
        weight_decay: f64,
        step: f64,
    ) -> *mut c_char;
}

impl UpdateOps for LibTorch<f32> {
    const IN_PLACE: bool = true;

    fn own(x: TchTensor) -> TchTensor {
        TchTensor::new(x.tensor.contiguous().copy())
    }

    fn put(x: TchTensor, place: TchTensor) -> TchTensor {
        if x.tensor.data_ptr() != place.tensor.data_ptr() {
            place.tensor.shallow_clone().copy_(&x.tensor);
        }
        place
    }

    fn put_integers(x: TchTensor, place: TchTensor) -> TchTensor {
        Self::put(x, place)
    }

    fn sgd(
        param: TchTensor,
        gradient: TchTensor,
        velocity: Option<TchTensor>,
        step: &Sgd,
    ) -> (TchTensor, Option<TchTensor>) {
        if param.tensor.device() != tch::Device::Cpu {
            return sgd_by_kernel(param, &gradient, velocity, step, null_mut());
        }
        let mut velocity = velocity.map(in_order).or_else(|| (step.momentum != 0.0).then(|| zeros_like(&param)));
        let gradient = apart(&gradient, &param);
        let mut param = in_order(param);
        let memory = velocity.as_mut().map(values_mut);
        update::sgd(Parameter::InPlace(values_mut(&mut param), values(&gradient.tensor)), memory, step, parallel_for);
        (param, velocity)
    }

    fn sgd_there(
        param: TchTensor,
        gradient: TchTensor,
        velocity: Option<TchTensor>,
        step: &Sgd,
        rate: TchTensor,
    ) -> (TchTensor, Option<TchTensor>) {
        if param.tensor.device() != tch::Device::Cpu {
            return sgd_by_kernel(param, &gradient, velocity, step, borrowed(&rate));
        }
        Self::sgd(param, gradient, velocity, &Sgd { rate: number::<Self>(rate), ..*step })
    }

    fn adamw(
        param: TchTensor,
        gradient: TchTensor,
        moments: Option<[TchTensor; 2]>,
        step: &AdamW,
    ) -> (TchTensor, [TchTensor; 2]) {
        let moments = moments.unwrap_or_else(|| [zeros_like(&param), zeros_like(&param)]);
        let mut moments = moments.map(in_order);
        let gradient = apart(&gradient, &param);
        let mut param = in_order(param);
        if param.tensor.device() == tch::Device::Cpu {
            let memory = moments.each_mut().map(values_mut);
            let parameter = Parameter::InPlace(values_mut(&mut param), values(&gradient.tensor));
            update::adamw(parameter, memory, step, parallel_for);
        } else {
            adamw_by_kernel(&param, &gradient, &moments, step, [null_mut(); 2]);
        }
        (param, moments)
    }

    fn adamw_there(
        param: TchTensor,
        gradient: TchTensor,
        moments: Option<[TchTensor; 2]>,
        step: &AdamW,
        there: [TchTensor; 2],
    ) -> (TchTensor, [TchTensor; 2]) {
        if param.tensor.device() == tch::Device::Cpu {
            let [rate, number] = there.map(number::<Self>);
            return Self::adamw(param, gradient, moments, &AdamW { rate, step: number as usize, ..*step });
        }
        let moments = moments.unwrap_or_else(|| [zeros_like(&param), zeros_like(&param)]).map(in_order);
        let gradient = apart(&gradient, &param);
        let param = in_order(param);
        adamw_by_kernel(&param, &gradient, &moments, step, there.each_ref().map(borrowed));
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

/// The tensor with its elements in order, where it is if they are.
fn in_order(x: TchTensor) -> TchTensor {
    TchTensor::from_existing(x.tensor.contiguous(), x.storage)
}

/// The gradient, contiguous, in other memory than the parameter.
fn apart(gradient: &TchTensor, param: &TchTensor) -> TchTensor {
    let gradient = gradient.tensor.contiguous();
    TchTensor::new(if gradient.data_ptr() == param.tensor.data_ptr() { gradient.copy() } else { gradient })
}

/// At the rate of `step`, or at the one on the device, unless that is null.
fn sgd_by_kernel(
    param: TchTensor,
    gradient: &TchTensor,
    velocity: Option<TchTensor>,
    step: &Sgd,
    rate_there: Pointer,
) -> (TchTensor, Option<TchTensor>) {
    let (first, remembers) = (c_int::from(velocity.is_none()), step.momentum != 0.0);
    let velocity = velocity.map(in_order).or_else(|| remembers.then(|| zeros_like(&param)));
    let gradient = apart(gradient, &param);
    let param = in_order(param);
    let memory = velocity.as_ref().map_or(null_mut(), borrowed);
    let (decay, nesterov) = (step.weight_decay, c_int::from(step.nesterov));
    let (place, given) = (borrowed(&param), borrowed(&gradient));
    // SAFETY: all live until after the call.
    check(unsafe { kiln_sgd(place, given, memory, rate_there, step.rate, step.momentum, decay, nesterov, first) });
    (param, velocity)
}

/// Changes `param` and the moments, with the rate and the number of `step`, or with those on the device, unless they
/// are null.
fn adamw_by_kernel(
    param: &TchTensor,
    gradient: &TchTensor,
    moments: &[TchTensor; 2],
    step: &AdamW,
    [rate, number]: [Pointer; 2],
) {
    let &AdamW { betas: [beta1, beta2], eps, weight_decay, .. } = step;
    let ([first, second], count) = (moments.each_ref().map(borrowed), step.step as f64);
    let (param, gradient) = (borrowed(param), borrowed(gradient));
    // SAFETY: all live until after the call.
    check(unsafe {
        kiln_adamw(param, gradient, first, second, rate, number, step.rate, beta1, beta2, eps, weight_decay, count)
    });
}

impl HostOps for LibTorch<f32> {
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
        update::add::<f32>(values_mut(&mut left), values(&right.tensor.contiguous()), parallel_for);
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
            adamw_by_kernel(&kernel, &gradient, &by_kernel, &step, [null_mut(); 2]);
            let (updated, updated_moments) = LibTorch::adamw(param, gradient, moments, &step);
            (param, moments) = (updated, Some(updated_moments));
        }
        let is_near = |one: &TchTensor, other: &TchTensor| one.tensor.allclose(&other.tensor, 1e-6, 1e-7, false);
        assert!(is_near(&param, &kernel));
        assert!(moments.iter().flatten().zip(&by_kernel).all(|(one, other)| is_near(one, other)));
    }
}
