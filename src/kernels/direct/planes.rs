//! A zero-padded NHWC copy of some channels of some images, into which the tables of [`super::tile`] point.

use std::ops::Range;

use super::copy::copy_rows;
use crate::activation::Activation;

/// Images `[batch, height, width, channels]`, contiguous.
#[derive(Debug, Clone, Copy)]
pub(super) struct Images<'a, T> {
    pub(super) values: &'a [T],
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl<'a, T> Images<'a, T> {
    /// Values of one image.
    pub(super) fn image(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Pixels from the start of a row on.
    fn row(&self, image: usize, row: usize) -> &'a [T] {
        &self.values[(image * self.height + row) * self.width * self.channels..]
    }
}

/// The layout of padded images, `[images, height, width, channels]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planes {
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    /// Rows of zeros above the image, and columns of zeros left of it.
    pub(super) padding: usize,
    /// Every how many rows and columns of the image are copied.
    pub(super) every: usize,
}

impl Planes {
    /// Values of one image.
    pub(super) fn image(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Copies `channels` of `images` into `to`. The margins stay as they are: zero, if `to` began as zeros.
    pub(super) fn fill<T: Activation>(
        &self,
        to: &mut [f32],
        from: Images<T>,
        images: Range<usize>,
        channels: Range<usize>,
    ) {
        // With a stride, the last rows and columns of an image may never be read.
        let [height, width] = [[from.height, self.height], [from.width, self.width]]
            .map(|[image, plane]| image.div_ceil(self.every).min(plane - self.padding));
        let step = self.every * from.channels;
        for (image, to) in images.zip(to.chunks_mut(self.image())) {
            let rows = to.chunks_mut(self.width * self.channels).skip(self.padding);
            for (row, to) in (0..height).zip(rows) {
                let (from, to) =
                    (&from.row(image, row * self.every)[channels.start..], &mut to[self.padding * self.channels..]);
                copy_rows(from, step, to, self.channels, [width, channels.len()]);
            }
        }
    }
}
