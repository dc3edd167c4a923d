//! Updates and transfers of LibTorch's tensors: in the host's memory by the loops of `host_update.rs`, on CUDA by ATen's
//! fused kernel.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use burn::backend::LibTorch;
use burn::backend::libtorch::{TchElement, TchTensor};

use super::{Pointer, borrowed, check};
use crate::ops::host::HostOps;
use crate::ops::host_update::{norm_on_host, sgd_on_host};
use crate::ops::update::{Sgd, UpdateOps};

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
    fn kiln_each(count: i64, work: extern "C" fn(*mut c_void, i64), context: *mut c_void);
}

impl UpdateOps for LibTorch<f32> {
    fn sgd(
        param: TchTensor,
        gradient: TchTensor,
        velocity: Option<TchTensor>,
        step: &Sgd,
    ) -> (TchTensor, Option<TchTensor>) {
        let (first, remembers) = (velocity.is_none(), step.momentum != 0.0);
        let mut velocity = velocity.map(alone).or_else(|| remembers.then(|| TchTensor::new(param.tensor.zeros_like())));
        if param.tensor.device() == tch::Device::Cpu {
            let (param, mut gradient) = (param.tensor.contiguous(), alone(gradient));
            sgd_on_host(values(&param), values_mut(&mut gradient), velocity.as_mut().map(values_mut), step, each);
            return (gradient, velocity);
        }
        // The model still holds the old values, so the new ones are a copy that changes in place.
        let param = TchTensor::new(param.tensor.copy());
        let gradient = TchTensor::new(gradient.tensor.contiguous());
        let (rate, momentum, decay) = (step.rate, step.momentum, step.weight_decay);
        let (nesterov, first) = (c_int::from(step.nesterov), c_int::from(first));
        let memory = velocity.as_ref().map_or(null_mut(), borrowed);
        // SAFETY: all three live until after the call; nobody else holds the memory that it writes.
        check(unsafe {
            kiln_sgd(borrowed(&param), borrowed(&gradient), memory, rate, momentum, decay, nesterov, first)
        });
        (param, velocity)
    }

    fn norm(x: TchTensor) -> TchTensor {
        if x.tensor.device() != tch::Device::Cpu {
            return TchTensor::new(x.tensor.norm().view([1]));
        }
        TchTensor::new(tch::Tensor::from_slice(&[norm_on_host(values(&x.tensor.contiguous()), each) as f32]))
    }
}

impl<E: TchElement> HostOps for LibTorch<E> {
    fn append_to(x: TchTensor, host: &mut Vec<f32>) {
        host.extend_from_slice(values(&x.tensor.to_device(tch::Device::Cpu).contiguous()));
    }

    fn from_host(values: &[f32], device: &Self::Device) -> TchTensor {
        TchTensor::new(tch::Tensor::from_slice(values).to_device((*device).into()))
    }
}

/// On the threads of LibTorch's own operations: they spin for a while after each, and another pool's would have to share
/// the cores with them.
fn each(count: usize, mut work: &(dyn Fn(usize) + Sync)) {
    extern "C" fn call(work: *mut c_void, number: i64) {
        // SAFETY: `kiln_each` passes on what it is given below, while it lives.
        let work = unsafe { &*work.cast::<&(dyn Fn(usize) + Sync)>() };
        work(number as usize);
    }
    // SAFETY: all threads are done with `work`, which they only share, when the call returns.
    unsafe { kiln_each(count as i64, call, (&raw mut work).cast()) };
}

/// The tensor, contiguous, in memory that nobody else holds.
fn alone(tensor: TchTensor) -> TchTensor {
    match (tensor.tensor.is_contiguous(), tensor.can_mut()) {
        (true, true) => tensor,
        (true, false) => TchTensor::new(tensor.tensor.copy()),
        (false, _) => TchTensor::new(tensor.tensor.contiguous()),
    }
}

/// The values of a contiguous f32 tensor in the host's memory.
fn values(tensor: &tch::Tensor) -> &[f32] {
    assert!(tensor.kind() == tch::Kind::Float && tensor.is_contiguous(), "gradients and weights are f32");
    // SAFETY: so much memory, of that type and without gaps, belongs to the tensor that is borrowed.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel()) }
}

/// As [`values`], for a tensor made by [`alone`].
fn values_mut(tensor: &mut TchTensor) -> &mut [f32] {
    assert!(tensor.tensor.kind() == tch::Kind::Float && tensor.tensor.is_contiguous(), "gradients and weights are f32");
    // SAFETY: as in `values`; nobody else holds this memory.
    unsafe { std::slice::from_raw_parts_mut(tensor.tensor.data_ptr().cast(), tensor.tensor.numel()) }
}
