//! [`Trim`]med kernels by Burn's operations.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, Slice, TensorMetadata};
use kiln_kernels::Trim;

/// The part of a weight that lies on the image.
pub(super) fn cropped<B: Backend>(weight: FloatTensor<B>, trim: &Trim) -> FloatTensor<B> {
    B::float_slice(weight, &slices(trim))
}

/// The gradient of whole kernels from that of their part.
pub(super) fn padded<B: Backend>(gradient: FloatTensor<B>, trim: &Trim) -> FloatTensor<B> {
    let zeros = B::float_zeros(Shape::new(trim.whole), &B::float_device(&gradient), gradient.dtype().into());
    B::float_slice_assign(zeros, &slices(trim), gradient)
}

fn slices(trim: &Trim) -> [Slice; 4] {
    let [outputs, inputs, ..] = trim.whole;
    [0..outputs, 0..inputs, trim.rows.clone(), trim.columns.clone()].map(Slice::from)
}
