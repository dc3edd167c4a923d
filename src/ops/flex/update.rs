//! Weight updates and transfers; Flex tensors already lie in the host's memory.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{DType, Element, FloatDType, TensorMetadata, bf16, f16};
use bytemuck::Pod;
use kiln_kernels::update::{self, Parameter};
use kiln_kernels::{Half, LEAST_ROUNDED};
use rayon::prelude::*;

use super::{contiguous, new_tensor, of_values, values, vector};
use crate::host::{HostOps, Memory};
use crate::images::ImageOps;
use crate::traffic::reading;
use crate::update::{AdamW, Lars, Sgd, UpdateOps};

impl ImageOps for Flex {}

impl UpdateOps for Flex {
    fn sgd(
        param: FlexTensor,
        gradient: FlexTensor,
        velocity: Option<FlexTensor>,
        step: &Sgd,
    ) -> (FlexTensor, Option<FlexTensor>) {
        let zeros = || zeros_like(&param);
        let mut velocity = velocity.or_else(|| (step.momentum != 0.0).then(zeros));
        // `storage_mut` copies if there is another reference.
        let memory = velocity.as_mut().map(FlexTensor::storage_mut::<f32>);
        let updated = updated(param, gradient, |parameter| update::sgd(parameter, memory, step, parallel_for));
        (updated, velocity)
    }

    fn adamw(
        param: FlexTensor,
        gradient: FlexTensor,
        moments: Option<[FlexTensor; 2]>,
        step: &AdamW,
    ) -> (FlexTensor, [FlexTensor; 2]) {
        let mut moments = moments.unwrap_or_else(|| [zeros_like(&param), zeros_like(&param)]);
        let memory = moments.each_mut().map(FlexTensor::storage_mut::<f32>);
        let updated = updated(param, gradient, |parameter| update::adamw(parameter, memory, step, parallel_for));
        (updated, moments)
    }

    fn lars(
        param: FlexTensor,
        gradient: FlexTensor,
        velocity: Option<FlexTensor>,
        step: &Lars,
    ) -> (FlexTensor, FlexTensor) {
        let mut velocity = velocity.unwrap_or_else(|| zeros_like(&param));
        let memory = velocity.storage_mut::<f32>();
        let updated = updated(param, gradient, |parameter| update::lars(parameter, memory, step, parallel_for));
        (updated, velocity)
    }

    fn added(left: FlexTensor, right: FlexTensor) -> FlexTensor {
        Self::add(left, right)
    }

    fn blend(left: FlexTensor, right: FlexTensor, shares: [f64; 2]) -> FlexTensor {
        changed(left, |left| update::blend(left, values(&contiguous(right)), shares, parallel_for))
    }

    fn by_rms(gradient: FlexTensor, moment: Option<FlexTensor>, constants: [f64; 2]) -> [FlexTensor; 2] {
        let mut moment = contiguous(moment.unwrap_or_else(|| zeros_like(&gradient)));
        let memory = moment.storage_mut();
        let gradient = changed(gradient, |gradient| update::by_rms(gradient, memory, constants, parallel_for));
        [gradient, moment]
    }

    fn scaled(x: FlexTensor, factor: f64) -> FlexTensor {
        let factor = factor as f32;
        changed(x, |values| update::map(values, parallel_for, |value| value * factor))
    }

    fn clamped(x: FlexTensor, limit: f64) -> FlexTensor {
        let limit = limit as f32;
        changed(x, |values| update::map(values, parallel_for, |value| value.clamp(-limit, limit)))
    }

    fn norm(x: FlexTensor) -> FlexTensor {
        vector(vec![update::norm(values(&x.to_contiguous()), parallel_for) as f32])
    }
}

fn zeros_like(param: &FlexTensor) -> FlexTensor {
    vector(vec![0.0; param.shape().num_elements()])
}

/// The parameter that `update` writes: to the memory of the gradient, unless somebody else has that, too.
fn updated(param: FlexTensor, gradient: FlexTensor, update: impl FnOnce(Parameter<'_>)) -> FlexTensor {
    assert!(
        [&param, &gradient].map(|tensor| tensor.dtype()) == [DType::F32; 2],
        "parameters and their gradients are f32"
    );
    let (param, mut gradient) = (contiguous(param), contiguous(gradient));
    if let Some(own) = gradient.try_storage_mut::<f32>() {
        update(Parameter::InGradient(values(&param), own));
        return gradient;
    }
    new_tensor(param.shape(), |updated| update(Parameter::Apart(values(&param), values(&gradient), updated)))
}

/// The f32 tensor with its elements in order, changed in place, in a copy if there is another reference.
fn changed(x: FlexTensor, change: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut x = contiguous(x);
    change(x.storage_mut());
    x
}

/// The elements of a contiguous tensor in another type.
fn converted<A: Element + Pod, E: Element + Default>(x: &FlexTensor, convert: fn(&[A], &mut [E])) -> FlexTensor {
    let from = x.storage::<A>();
    let mut to = vec![E::default(); from.len()];
    let pieces = from.par_chunks(LEAST_ROUNDED).zip(to.par_chunks_mut(LEAST_ROUNDED));
    pieces.for_each(|(from, to)| convert(from, to));
    of_values(to, x.shape())
}

/// Runs `work` on rayon's threads, as Flex does. Most tensors are a single piece, which stays on the calling thread.
pub(super) fn parallel_for(count: usize, work: &(dyn Fn(usize) + Sync)) {
    match count {
        1 => work(0),
        _ => (0..count).into_par_iter().for_each(work),
    }
}

impl HostOps for Flex {
    const CAN_SHARE: bool = true;

    type Below = Self;

    fn is_processor() -> bool {
        true
    }

    fn has_channels_innermost(x: &FlexTensor) -> bool {
        let has_four = x.shape().num_dims() == 4;
        !x.is_contiguous() && has_four && Self::float_permute(x.clone(), &[0, 2, 3, 1]).is_contiguous()
    }

    fn share(x: FlexTensor) -> FlexTensor {
        x
    }

    fn adopt(x: FlexTensor, _device: &Self::Device) -> FlexTensor {
        x
    }

    fn add(left: FlexTensor, right: FlexTensor) -> FlexTensor {
        changed(left, |left| update::add(left, values(&contiguous(right)), parallel_for))
    }

    fn cast(x: FlexTensor, dtype: FloatDType) -> FlexTensor {
        let x = contiguous(x);
        match (x.dtype(), dtype) {
            (DType::F32, FloatDType::BF16) => converted(&x, bf16::narrow),
            (DType::F32, FloatDType::F16) => converted(&x, f16::narrow),
            (DType::BF16, FloatDType::F32) => converted(&x, bf16::widen),
            (DType::F16, FloatDType::F32) => converted(&x, f16::widen),
            _ => Self::float_cast(x, dtype),
        }
    }

    fn memory(x: &mut FlexTensor) -> Option<Memory> {
        *x = contiguous(x.clone());
        let (length, dtype) = (x.shape().num_elements(), x.dtype());
        let pointer = match dtype {
            DType::F32 => x.storage_mut::<f32>().as_mut_ptr().cast(),
            DType::BF16 => x.storage_mut::<bf16>().as_mut_ptr().cast(),
            _ => return None,
        };
        Some(Memory { pointer, length, dtype })
    }

    fn values_mut(x: &mut FlexTensor) -> Option<&mut [f32]> {
        *x = contiguous(x.clone());
        Some(x.storage_mut())
    }

    fn append_to(x: FlexTensor, host: &mut Vec<f32>) {
        let _copy = reading(x.shape().num_elements(), x.dtype());
        host.extend_from_slice(values(&x.to_contiguous()));
    }
}
