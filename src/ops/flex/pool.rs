//! Max-pooling over NHWC images.

use std::ops::Range;

use kiln_kernels::vectorized;
use rayon::prelude::*;

use crate::pool::{PADDING, SIDE, STRIDE};

#[derive(Debug, Clone, Copy)]
pub(super) struct Image {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
}

impl Image {
    pub(super) fn pooled(self) -> Self {
        let [height, width] = [self.height, self.width].map(|size| (size + 2 * PADDING - SIDE) / STRIDE + 1);
        Self { height, width, ..self }
    }

    fn values(self) -> usize {
        self.height * self.width * self.channels
    }

    /// Every pixel, with the range of its channels among the values.
    fn pixels(self) -> impl Iterator<Item = ([usize; 2], Range<usize>)> {
        let places = (0..self.height).flat_map(move |y| (0..self.width).map(move |x| [y, x]));
        places.enumerate().map(move |(i, place)| (place, i * self.channels..(i + 1) * self.channels))
    }

    /// The ranges of the input pixels in the window of an output pixel.
    fn window(self, place: [usize; 2]) -> impl Iterator<Item = Range<usize>> {
        let [ys, xs] = [(place[0], self.height), (place[1], self.width)].map(|(at, size)| {
            let first = at * STRIDE;
            first.saturating_sub(PADDING)..(first + SIDE - PADDING).min(size)
        });
        ys.flat_map(move |y| xs.clone().map(move |x| y * self.width + x))
            .map(move |pixel| pixel * self.channels..(pixel + 1) * self.channels)
    }

    /// The largest values; NaN counts as the largest.
    pub(super) fn pool(self, x: &[f32], output: &mut [f32]) {
        let images = x.par_chunks(self.values()).zip(output.par_chunks_mut(self.pooled().values()));
        images.for_each(|(x, output)| vectorized(pool, (self, x, output)));
    }

    /// Adds the mean over the pixels of each image to `output`.
    pub(super) fn mean(self, x: &[f32], output: &mut [f32]) {
        let pixels = (self.height * self.width) as f32;
        x.par_chunks(self.values()).zip(output.par_chunks_mut(self.channels)).for_each(|(x, output)| {
            for pixel in x.chunks(self.channels) {
                output.iter_mut().zip(pixel).for_each(|(sum, x)| *sum += x);
            }
            output.iter_mut().for_each(|sum| *sum /= pixels);
        });
    }

    /// Writes each image's values of channels to all its pixels.
    pub(super) fn spread(self, x: &[f32], output: &mut [f32]) {
        x.par_chunks(self.channels).zip(output.par_chunks_mut(self.values())).for_each(|(x, output)| {
            output.chunks_mut(self.channels).for_each(|pixel| pixel.copy_from_slice(x));
        });
    }

    /// Adds the gradient of `x` to `dx`, from that of the output.
    pub(super) fn gradient(self, gradient: &[f32], x: &[f32], output: &[f32], dx: &mut [f32]) {
        let pooled = self.pooled().values();
        let images = gradient.par_chunks(pooled).zip(output.par_chunks(pooled));
        let images = images.zip(x.par_chunks(self.values()).zip(dx.par_chunks_mut(self.values())));
        images.for_each(|((gradient, output), (x, dx))| vectorized(route_gradient, (self, gradient, [x, output], dx)));
    }
}

#[inline(always)]
fn pool((image, x, output): (Image, &[f32], &mut [f32])) {
    for (place, to) in image.pooled().pixels() {
        let output = &mut output[to];
        output.fill(f32::NEG_INFINITY);
        for from in image.window(place) {
            for (output, x) in output.iter_mut().zip(&x[from]) {
                *output = if *x > *output || x.is_nan() { *x } else { *output };
            }
        }
    }
}

#[inline(always)]
fn route_gradient((image, gradient, [x, output], dx): (Image, &[f32], [&[f32]; 2], &mut [f32])) {
    let mut left = vec![0.0; image.channels];
    for (place, from) in image.pooled().pixels() {
        left.copy_from_slice(&gradient[from.clone()]);
        for to in image.window(place) {
            let values = x[to.clone()].iter().zip(&output[from.clone()]);
            for ((dx, left), (x, output)) in dx[to].iter_mut().zip(&mut left).zip(values) {
                let share = if x == output { *left } else { 0.0 };
                *dx += share;
                *left -= share;
            }
        }
    }
}
