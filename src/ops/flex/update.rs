//! Weight updates and transfers; Flex tensors already lie in the host's memory.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{DType, TensorMetadata, bf16};
use kiln_kernels::update::{self, Gradient};
use rayon::prelude::*;

use super::{contiguous, new_tensor, values, vector};
use crate::host::{HostOps, Memory};
use crate::images::ImageOps;
use crate::traffic::reading;
use crate::update::{AdamW, Sgd, UpdateOps};

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
        let updated =
            updated(param, gradient, |param, gradient| update::sgd(param, gradient, memory, step, parallel_for));
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
        let updated =
            updated(param, gradient, |param, gradient| update::adamw(param, gradient, memory, step, parallel_for));
        (updated, moments)
    }

    fn norm(x: FlexTensor) -> FlexTensor {
        vector(vec![update::norm(values(&x.to_contiguous()), parallel_for) as f32])
    }
}

fn zeros_like(param: &FlexTensor) -> FlexTensor {
    vector(vec![0.0; param.shape().num_elements()])
}

/// The parameter that `update` writes: to the memory of the gradient, unless somebody else has that, too.
fn updated(param: FlexTensor, gradient: FlexTensor, update: impl FnOnce(&[f32], Gradient<'_>)) -> FlexTensor {
    assert!(
        [&param, &gradient].map(|tensor| tensor.dtype()) == [DType::F32; 2],
        "parameters and their gradients are f32"
    );
    let (param, mut gradient) = (contiguous(param), contiguous(gradient));
    if let Some(own) = gradient.try_storage_mut::<f32>() {
        update(values(&param), Gradient::Own(own));
        return gradient;
    }
    new_tensor(param.shape(), |updated| update(values(&param), Gradient::Shared(values(&gradient), updated)))
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
        let mut left = contiguous(left);
        update::add(left.storage_mut::<f32>(), values(&contiguous(right)), parallel_for);
        left
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
