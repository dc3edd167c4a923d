//! A zero-padded copy of a few channels of a few images: what the tables of [`super::tile`] point into.

use std::ops::Range;

/// Images `[batch, channels, height, width]`, contiguous.
#[derive(Debug, Clone, Copy)]
pub(super) struct Images<'a> {
    pub(super) values: &'a [f32],
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl<'a> Images<'a> {
    /// Pixels of a channel.
    pub(super) fn area(&self) -> usize {
        self.height * self.width
    }

    fn plane(&self, image: usize, channel: usize) -> &'a [f32] {
        &self.values[(image * self.channels + channel) * self.area()..][..self.area()]
    }
}

/// The layout of padded planes, `[images, channels, height, width]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planes {
    /// Room for so many channels of an image.
    pub(super) channels: usize,
    /// Padded height.
    pub(super) height: usize,
    /// Padded width.
    pub(super) width: usize,
    /// Rows of zeros above the image.
    pub(super) top: usize,
    /// Columns of zeros left of the image.
    pub(super) left: usize,
}

impl Planes {
    /// Values of one padded channel.
    pub(super) fn area(&self) -> usize {
        self.height * self.width
    }

    /// Values of one image.
    pub(super) fn image(&self) -> usize {
        self.channels * self.area()
    }

    /// Copies `channels` of `images` into `to`. The margins stay as they are: zero, if `to` began as zeros.
    pub(super) fn fill(&self, to: &mut [f32], from: Images, images: Range<usize>, channels: Range<usize>) {
        // An image may be larger than what a stride ever reaches; what is beyond is left out.
        let height = from.height.min(self.height - self.top);
        let width = from.width.min(self.width - self.left);
        for (image, to) in images.zip(to.chunks_mut(self.image())) {
            for (channel, to) in channels.clone().zip(to.chunks_mut(self.area())) {
                let rows = to[self.top * self.width..].chunks_mut(self.width);
                for (from, to) in from.plane(image, channel).chunks(from.width).zip(rows).take(height) {
                    copy_short(&mut to[self.left..self.left + width], &from[..width]);
                }
            }
        }
    }
}

/// Rows are short: a loop in place beats a call of memcpy.
fn copy_short(to: &mut [f32], from: &[f32]) {
    let (to, to_rest) = to.as_chunks_mut::<4>();
    let (from, from_rest) = from.as_chunks::<4>();
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to = *from);
}
