//! A zero-padded NHWC copy of some channels of some images, into which the tables of [`super::tile`] point.

use std::ops::Range;

/// Images `[batch, height, width, channels]`, contiguous.
#[derive(Debug, Clone, Copy)]
pub(super) struct Images<'a> {
    pub(super) values: &'a [f32],
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl<'a> Images<'a> {
    /// Pixels from the start of a row on.
    fn row(&self, image: usize, row: usize) -> impl Iterator<Item = &'a [f32]> {
        self.values[(image * self.height + row) * self.width * self.channels..].chunks(self.channels)
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
}

impl Planes {
    /// Values of one image.
    pub(super) fn image(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Copies `channels` of `images` into `to`. The margins stay as they are: zero, if `to` began as zeros.
    pub(super) fn fill(&self, to: &mut [f32], from: Images, images: Range<usize>, channels: Range<usize>) {
        // With a stride, the last rows and columns of an image may never be read.
        let height = from.height.min(self.height - self.padding);
        let width = from.width.min(self.width - self.padding);
        for (image, to) in images.zip(to.chunks_mut(self.image())) {
            let rows = to.chunks_mut(self.width * self.channels).skip(self.padding);
            for (row, to) in (0..height).zip(rows) {
                let pixels = to.chunks_mut(self.channels).skip(self.padding);
                for (from, to) in from.row(image, row).zip(pixels).take(width) {
                    copy_short(&mut to[..channels.len()], &from[channels.clone()]);
                }
            }
        }
    }
}

/// A pixel is short: an inline loop is faster than a call of memcpy.
fn copy_short(to: &mut [f32], from: &[f32]) {
    let (to, to_rest) = to.as_chunks_mut::<4>();
    let (from, from_rest) = from.as_chunks::<4>();
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to = *from);
}
