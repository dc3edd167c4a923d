//! Kernels without the rows and columns that meet padding only.
//!
//! Where a convolution's output is one pixel, the kernel has one position, and what of it lies outside the image is
//! multiplied by zeros. The last stage of a network for small images is like that: of a 3x3 kernel on a map of one pixel
//! one ninth counts, and reading the rest takes longer than computing. Its gradient is zero.

use std::ops::Range;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, Slice, TensorMetadata};

use super::sliding::Sliding;

/// The part of kernels `[outputs, inputs, height, width]` that lies on the image.
#[derive(Debug, Clone)]
pub struct Trim {
    /// The shape of the kernels.
    pub whole: Shape,
    /// Which of their rows lie on the image.
    pub rows: Range<usize>,
    /// Which of their columns do.
    pub columns: Range<usize>,
}

impl Trim {
    /// `None` where all of the kernel is of use, or the output is more than one pixel. With what is left of the kernel
    /// the image needs no padding.
    pub(super) fn of(x: &Shape, weight: &Shape, Sliding { stride, padding, .. }: Sliding) -> Option<Self> {
        let on_image = |axis: usize| {
            let (size, kernel) = (x[axis], weight[axis]);
            let is_pixel = size + 2 * padding < kernel + stride;
            (is_pixel && padding < kernel).then(|| padding..kernel.min(size + padding))
        };
        let (rows, columns) = (on_image(2)?, on_image(3)?);
        let is_whole = [rows.len(), columns.len()] == [weight[2], weight[3]];
        (!is_whole).then(|| Self { whole: weight.clone(), rows, columns })
    }

    /// The shape of what is left.
    pub fn part(&self) -> Shape {
        Shape::new([self.whole[0], self.whole[1], self.rows.len(), self.columns.len()])
    }

    /// What is left of a weight, by Burn's own operation.
    pub(super) fn slice<B: Backend>(&self, weight: FloatTensor<B>) -> FloatTensor<B> {
        B::float_slice(weight, &self.slices())
    }

    /// The gradient of the whole from that of the part, by Burn's own operations.
    pub(super) fn grow<B: Backend>(&self, gradient: FloatTensor<B>) -> FloatTensor<B> {
        let zeros = B::float_zeros(self.whole.clone(), &B::float_device(&gradient), gradient.dtype().into());
        B::float_slice_assign(zeros, &self.slices(), gradient)
    }

    fn slices(&self) -> [Slice; 4] {
        [0..self.whole[0], 0..self.whole[1], self.rows.clone(), self.columns.clone()].map(Slice::from)
    }
}
