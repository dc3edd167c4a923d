//! Channels as lanes: `[images, channels, pixels]` to and from `[panels, rows, lanes]`, a row for each pixel.
//!
//! A panel holds `lanes` channels side by side for every pixel, so that one vector load reads the same pixel of many
//! channels. Where the last panel has more lanes than channels are left, the remaining lanes are not touched.

use std::ops::Range;

use rayon::prelude::*;

use super::tile;

/// Side of the square blocks that are transposed at a time: reads and writes then both stay in few cache lines.
const BLOCK: usize = 16;

/// The layout of some images as panels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes {
    pub(super) channels: usize,
    /// Pixels of an image.
    pub(super) pixels: usize,
    /// Rows of a panel: at least the pixels of all images.
    pub(super) rows: usize,
    /// Channels side by side.
    pub(super) lanes: usize,
}

impl Lanes {
    pub(super) fn new(channels: usize, pixels: usize, rows: usize) -> Self {
        Self { channels, pixels, rows, lanes: tile::lanes(channels) }
    }

    pub(super) fn panels(&self) -> usize {
        self.channels.div_ceil(self.lanes)
    }

    /// Values of one panel.
    pub(super) fn panel(&self) -> usize {
        self.rows * self.lanes
    }

    /// Values of all panels.
    pub(super) fn len(&self) -> usize {
        self.panels() * self.panel()
    }

    /// Images `[images, channels, pixels]` to panels.
    pub(super) fn spread(&self, images: &[f32], panels: &mut [f32]) {
        self.each_block(images.len(), 0..self.channels, |plane, at, size| {
            self.transpose(&images[plane..], &mut panels[at..], size);
        });
    }

    /// One block of [`Lanes::spread`], from the front of both slices.
    fn transpose(&self, images: &[f32], panels: &mut [f32], size: [usize; 2]) {
        let block = read(images, self.pixels, size);
        for (to, pixel) in panels.chunks_mut(self.lanes).zip(0..size[1]) {
            for (to, channel) in to.iter_mut().zip(&block[..size[0]]) {
                *to = channel[pixel];
            }
        }
    }

    /// A kernel `[images, channels, pixels]` to panels, in parallel over the panels.
    pub(super) fn spread_kernel(&self, weights: &[f32]) -> Vec<f32> {
        let mut panels = vec![0.0; self.len()];
        panels.par_chunks_mut(self.panel()).enumerate().for_each(|(panel, to)| {
            let first = panel * self.lanes;
            self.each_block(weights.len(), first..self.channels.min(first + self.lanes), |plane, at, size| {
                self.transpose(&weights[plane..], &mut to[at - panel * self.panel()..], size);
            });
        });
        panels
    }

    /// Panels to images `[images, channels, pixels]`.
    pub(super) fn collect(&self, panels: &[f32], images: &mut [f32]) {
        self.each_block(images.len(), 0..self.channels, |plane, at, [channels, pixels]| {
            let block = read(&panels[at..], self.lanes, [pixels, channels]);
            for (to, channel) in images[plane..].chunks_mut(self.pixels).zip(0..channels) {
                for (to, pixel) in to.iter_mut().zip(&block[..pixels]) {
                    *to = pixel[channel];
                }
            }
        });
    }

    /// Calls `visit` for each block of some channels, with its offsets in the images and in the panels, and with its
    /// channels and pixels.
    fn each_block(&self, values: usize, channels: Range<usize>, mut visit: impl FnMut(usize, usize, [usize; 2])) {
        for image in 0..values / (self.channels * self.pixels) {
            for channel in channels.clone().step_by(BLOCK) {
                let (panel, lane) = (channel / self.lanes, channel % self.lanes);
                for pixel in (0..self.pixels).step_by(BLOCK) {
                    let plane = (image * self.channels + channel) * self.pixels + pixel;
                    let row = image * self.pixels + pixel;
                    let size = [BLOCK.min(channels.end - channel), BLOCK.min(self.pixels - pixel)];
                    visit(plane, panel * self.panel() + row * self.lanes + lane, size);
                }
            }
        }
    }
}

/// The first columns of the first rows of a matrix whose rows are `stride` apart.
#[inline(always)]
fn read(matrix: &[f32], stride: usize, [rows, columns]: [usize; 2]) -> [[f32; BLOCK]; BLOCK] {
    let mut block = [[0.0; BLOCK]; BLOCK];
    for (to, from) in block[..rows].iter_mut().zip(matrix.chunks(stride)) {
        // A whole row is copied in vectors, a part of one value by value.
        match from.first_chunk().filter(|_| columns == BLOCK) {
            Some(from) => *to = *from,
            None => to[..columns].copy_from_slice(&from[..columns]),
        }
    }
    block
}
