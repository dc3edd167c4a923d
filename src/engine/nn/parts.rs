//! Batches whose equal parts have batch-norm statistics of their own: they become further channels, so that one pass
//! computes all.

use burn::tensor::Tensor;
use kiln_ops::{BatchNormOps, swapped};

/// The equal parts of a batch that have statistics of their own.
pub(super) struct Parts {
    pub(super) count: usize,
    /// Of the whole batch, `[batch, channels, height, width]`.
    pub(super) size: [usize; 4],
    /// Whether the channels of a pixel are neighbours in memory, and stay so.
    pub(super) innermost: bool,
}

impl Parts {
    /// The parts as further channels of the first one: `[batch / count, count * channels, height, width]`.
    pub(super) fn beside<B: BatchNormOps>(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let [batch, channels, ..] = self.size;
        let [rows, _] = self.rows();
        self.swapped(x, [self.count, rows], [batch / self.count, self.count * channels])
    }

    /// The inverse of [`Parts::beside`].
    pub(super) fn apart<B: BatchNormOps>(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let [batch, channels, ..] = self.size;
        let [rows, _] = self.rows();
        self.swapped(x, [rows, self.count], [batch, channels])
    }

    /// The number of pieces of memory in each part that stay whole, and their length.
    fn rows(&self) -> [usize; 2] {
        let [batch, channels, height, width] = self.size;
        let (images, pixels) = (batch / self.count, height * width);
        if self.innermost { [images * pixels, channels] } else { [images, channels * pixels] }
    }

    fn swapped<B: BatchNormOps>(
        &self,
        x: Tensor<B, 4>,
        [rows, columns]: [usize; 2],
        [batch, channels]: [usize; 2],
    ) -> Tensor<B, 4> {
        let ([_, length], [.., height, width]) = (self.rows(), self.size);
        let swap = |x: Tensor<B, 4>| swapped(x.reshape([rows, columns, length]));
        match (self.count, self.innermost) {
            (1, _) => x,
            (_, true) => swap(x.permute([0, 2, 3, 1])).reshape([batch, height, width, channels]).permute([0, 3, 1, 2]),
            (_, false) => swap(x).reshape([batch, channels, height, width]),
        }
    }
}
