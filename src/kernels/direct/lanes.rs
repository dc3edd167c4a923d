//! Channels as lanes: pixels `[rows, channels]` to and from `[panels, rows, lanes]`, and kernels to panels.
//!
//! A panel holds `lanes` adjacent channels of every pixel, so that one vector load reads the same pixel of many
//! channels. Unused lanes of the last panel are not touched.

use super::copy::copy_rows;
use super::tile;
use crate::activation::Activation;
use crate::pieces::{ParallelFor, on_pieces};
use crate::vector::transpose;

/// Pixels that are packed at once.
const TOGETHER: usize = 8;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Lanes {
    pub(crate) channels: usize,
    /// Pixels of an image.
    pub(crate) pixels: usize,
    /// Rows of a panel: at least the pixels of all images.
    pub(crate) rows: usize,
    pub(super) lanes: usize,
}

impl Lanes {
    pub(crate) fn new(channels: usize, pixels: usize, rows: usize) -> Self {
        Self { channels, pixels, rows, lanes: tile::lanes(channels) }
    }

    /// Values of one panel.
    pub(crate) fn panel(&self) -> usize {
        self.rows * self.lanes
    }

    /// Values of all panels.
    pub(super) fn len(&self) -> usize {
        self.channels.div_ceil(self.lanes) * self.panel()
    }

    /// Pixels `[rows, channels]` to panels.
    pub(super) fn pack<T: Activation>(&self, pixels: &[T], panels: &mut [f32]) {
        // A few pixels at a time, so that memory is read in order.
        for (i, pixels) in pixels.chunks(TOGETHER * self.channels).enumerate() {
            for (panel, to) in panels.chunks_mut(self.panel()).enumerate() {
                let size = [pixels.len() / self.channels, self.filled(panel)];
                let to = &mut to[i * TOGETHER * self.lanes..];
                copy_rows(&pixels[panel * self.lanes..], self.channels, to, self.lanes, size);
            }
        }
    }

    /// A kernel `[images, channels, pixels]` to panels, in parallel over the panels.
    pub(super) fn pack_kernel(&self, weights: &[f32], parallel_for: ParallelFor, panels: &mut [f32]) {
        let parts = panels.chunks_mut(self.panel()).enumerate();
        on_pieces(parts, parallel_for, |(panel, to)| self.pack_panel(*panel, weights, to));
    }

    pub(crate) fn pack_panel(&self, panel: usize, images: &[f32], to: &mut [f32]) {
        if self.filled(panel) < self.lanes {
            to.fill(0.0);
        }
        for (image, to) in images.chunks(self.channels * self.pixels).zip(to.chunks_mut(self.pixels * self.lanes)) {
            transpose(
                &image[panel * self.lanes * self.pixels..],
                self.pixels,
                to,
                self.lanes,
                [self.filled(panel), self.pixels],
            );
        }
    }

    /// Lanes of a panel that are channels.
    fn filled(&self, panel: usize) -> usize {
        self.lanes.min(self.channels - panel * self.lanes)
    }
}
