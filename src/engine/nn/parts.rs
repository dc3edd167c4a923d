//! Batches whose equal parts have batch-norm statistics of their own: they become further channels, so that one pass
//! computes all.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

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
    pub(super) fn beside<B: Backend>(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let [batch, channels, ..] = self.size;
        let order = |[outer, inner]: [usize; 2]| [self.count, batch / self.count, outer, channels, inner];
        self.reordered(x, order, [1, 2, 0, 3, 4], [batch / self.count, self.count * channels])
    }

    /// The inverse of [`Parts::beside`].
    pub(super) fn apart<B: Backend>(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let [batch, channels, ..] = self.size;
        let order = |[outer, inner]: [usize; 2]| [batch / self.count, outer, self.count, channels, inner];
        self.reordered(x, order, [2, 0, 1, 3, 4], [batch, channels])
    }

    fn reordered<B: Backend>(
        &self,
        x: Tensor<B, 4>,
        order: impl Fn([usize; 2]) -> [usize; 5],
        axes: [isize; 5],
        [batch, channels]: [usize; 2],
    ) -> Tensor<B, 4> {
        let [.., height, width] = self.size;
        match (self.count, self.innermost) {
            (1, _) => x,
            (_, true) => {
                let x = x.permute([0, 2, 3, 1]).reshape(order([height * width, 1])).permute(axes);
                x.reshape([batch, height, width, channels]).permute([0, 3, 1, 2])
            }
            (_, false) => x.reshape(order([1, height * width])).permute(axes).reshape([batch, channels, height, width]),
        }
    }
}
