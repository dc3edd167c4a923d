//! Trimming of LibTorch's kernels: in the host's memory by the loops of `host_trim.rs`, elsewhere by ATen's slices.

use burn::backend::LibTorch;
use burn::backend::libtorch::{TchElement, TchTensor};
use burn::tensor::Shape;
use tch::{Device, Kind, Tensor};

use super::memory::{parallel_for, uninit_mut, values};
use crate::ops::host_trim::{crop, pad};
use crate::ops::trim::Trim;

pub(super) fn trimmed<E: TchElement>(weight: TchTensor, trim: &Trim) -> TchTensor {
    if !is_plain(&weight.tensor) {
        return trim.slice::<LibTorch<E>>(weight);
    }
    let mut part = empty(trim.part(), &weight.tensor);
    match weight.tensor.kind() {
        Kind::Float => crop::<f32>(trim, values(&weight.tensor), uninit_mut(&mut part), parallel_for),
        _ => crop::<u16>(trim, values(&weight.tensor), uninit_mut(&mut part), parallel_for),
    }
    part
}

pub(super) fn untrimmed<E: TchElement>(gradient: TchTensor, trim: &Trim) -> TchTensor {
    let gradient = TchTensor::new(gradient.tensor.contiguous());
    if !is_plain(&gradient.tensor) {
        return trim.pad::<LibTorch<E>>(gradient);
    }
    let mut whole = empty(trim.whole.clone(), &gradient.tensor);
    match gradient.tensor.kind() {
        Kind::Float => pad::<f32>(trim, values(&gradient.tensor), uninit_mut(&mut whole), parallel_for),
        // The zero of both half types is all bits zero.
        _ => pad::<u16>(trim, values(&gradient.tensor), uninit_mut(&mut whole), parallel_for),
    }
    whole
}

fn is_plain(tensor: &Tensor) -> bool {
    let is_known = matches!(tensor.kind(), Kind::Float | Kind::Half | Kind::BFloat16);
    tensor.device() == Device::Cpu && tensor.is_contiguous() && is_known
}

fn empty(shape: Shape, like: &Tensor) -> TchTensor {
    let shape: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
    TchTensor::new(Tensor::empty(shape, (like.kind(), like.device())))
}
