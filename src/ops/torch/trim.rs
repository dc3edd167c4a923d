//! Trimming of LibTorch's kernels: in the host's memory by the loops of `host_trim.rs`, elsewhere by ATen's slices.

use burn::backend::LibTorch;
use burn::backend::libtorch::{TchElement, TchTensor};
use burn::tensor::Shape;
use tch::{Device, Kind, Tensor};

use super::memory::{each, room, values};
use crate::ops::host_trim::{put, take};
use crate::ops::trim::Trim;

pub(super) fn trimmed<E: TchElement>(weight: TchTensor, trim: &Trim) -> TchTensor {
    if !is_plain(&weight.tensor) {
        return trim.slice::<LibTorch<E>>(weight);
    }
    let mut part = empty(trim.part(), &weight.tensor);
    match weight.tensor.kind() {
        Kind::Float => take::<f32>(trim, values(&weight.tensor), room(&mut part), each),
        _ => take::<u16>(trim, values(&weight.tensor), room(&mut part), each),
    }
    part
}

pub(super) fn untrimmed<E: TchElement>(gradient: TchTensor, trim: &Trim) -> TchTensor {
    let gradient = TchTensor::new(gradient.tensor.contiguous());
    if !is_plain(&gradient.tensor) {
        return trim.grow::<LibTorch<E>>(gradient);
    }
    let mut whole = empty(trim.whole.clone(), &gradient.tensor);
    match gradient.tensor.kind() {
        Kind::Float => put::<f32>(trim, values(&gradient.tensor), room(&mut whole), each),
        // The zero of both half types is all bits zero.
        _ => put::<u16>(trim, values(&gradient.tensor), room(&mut whole), each),
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
