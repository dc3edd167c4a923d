//! Kernels without the rows and columns that only meet padding.
//!
//! If a convolution's output is one pixel, the kernel has one position, and its part outside of the image is multiplied
//! by zeros and has a zero gradient. In the last stage of a network for small images, with maps of one pixel, only one
//! ninth of a 3x3 kernel lies on the image, and reading the rest takes longer than computing.

use std::ops::Range;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, Slice, TensorMetadata};

use super::sliding::Sliding;

/// The part of kernels `[outputs, inputs, height, width]` that lies on the image.
#[derive(Debug, Clone)]
pub struct Trim {
    pub whole: Shape,
    /// The rows that lie on the image.
    pub rows: Range<usize>,
    /// The columns that lie on the image.
    pub columns: Range<usize>,
}

impl Trim {
    /// `None` if the whole kernel lies on the image or the output is larger than one pixel. A trimmed kernel needs no
    /// padding.
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

    /// The shape of the trimmed kernels.
    pub fn part(&self) -> Shape {
        Shape::new([self.whole[0], self.whole[1], self.rows.len(), self.columns.len()])
    }

    /// The trimmed part of a weight, by Burn's operations.
    pub(super) fn slice<B: Backend>(&self, weight: FloatTensor<B>) -> FloatTensor<B> {
        B::float_slice(weight, &self.slices())
    }

    /// The gradient of whole kernels from that of their part, by Burn's operations.
    pub(super) fn pad<B: Backend>(&self, gradient: FloatTensor<B>) -> FloatTensor<B> {
        let zeros = B::float_zeros(self.whole.clone(), &B::float_device(&gradient), gradient.dtype().into());
        B::float_slice_assign(zeros, &self.slices(), gradient)
    }

    fn slices(&self) -> [Slice; 4] {
        [0..self.whole[0], 0..self.whole[1], self.rows.clone(), self.columns.clone()].map(Slice::from)
    }
}
