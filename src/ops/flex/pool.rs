//! Max-pooling over NHWC images.

use std::mem::MaybeUninit;
use std::ops::Range;

use kiln_kernels::{Activation, narrow, vectorized};
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
    pub(super) fn pool<T: Activation>(self, x: &[T], output: &mut [MaybeUninit<T>]) {
        let images = x.par_chunks(self.values()).zip(output.par_chunks_mut(self.pooled().values()));
        images.for_each(|(x, output)| vectorized(pool, (self, x, output)));
    }

    /// The mean over the pixels of each image.
    pub(super) fn mean<T: Activation>(self, x: &[T], output: &mut [MaybeUninit<T>]) {
        let pixels = (self.height * self.width) as f32;
        x.par_chunks(self.values()).zip(output.par_chunks_mut(self.channels)).for_each(|(x, output)| {
            let mut sums = vec![0.0; self.channels];
            for pixel in x.chunks(self.channels) {
                sums.iter_mut().zip(pixel).for_each(|(sum, x)| *sum += x.widened());
            }
            output.iter_mut().zip(sums).for_each(|(output, sum)| *output = MaybeUninit::new(T::of(sum / pixels)));
        });
    }

    /// Writes each image's values of channels to all its pixels.
    pub(super) fn spread<T: Activation>(self, x: &[T], output: &mut [MaybeUninit<T>]) {
        x.par_chunks(self.channels).zip(output.par_chunks_mut(self.values())).for_each(|(x, output)| {
            for pixel in output.chunks_mut(self.channels) {
                pixel.iter_mut().zip(x).for_each(|(to, from)| *to = MaybeUninit::new(*from));
            }
        });
    }

    /// The gradient of `x`, from that of the output.
    pub(super) fn gradient<T: Activation>(self, gradient: &[T], x: &[T], output: &[T], dx: &mut [MaybeUninit<T>]) {
        let pooled = self.pooled().values();
        let images = gradient.par_chunks(pooled).zip(output.par_chunks(pooled));
        let images = images.zip(x.par_chunks(self.values()).zip(dx.par_chunks_mut(self.values())));
        images.for_each(|((gradient, output), (x, dx))| {
            let route = |sums: &mut [f32]| vectorized(route_gradient, (self, gradient, [x, output], sums));
            if let Some(dx) = T::as_f32_mut(dx) {
                dx.fill(MaybeUninit::new(0.0));
                // SAFETY: initialised above.
                return route(unsafe { std::slice::from_raw_parts_mut(dx.as_mut_ptr().cast(), dx.len()) });
            }
            let mut sums = vec![0.0; dx.len()];
            route(&mut sums);
            vectorized(narrow, (&sums[..], dx));
        });
    }
}

#[inline(always)]
fn pool<T: Activation>((image, x, output): (Image, &[T], &mut [MaybeUninit<T>])) {
    let mut largest = vec![0.0; image.channels];
    for (place, to) in image.pooled().pixels() {
        largest.fill(f32::NEG_INFINITY);
        for from in image.window(place) {
            for (largest, x) in largest.iter_mut().zip(&x[from]) {
                let x = x.widened();
                *largest = if x > *largest || x.is_nan() { x } else { *largest };
            }
        }
        output[to].iter_mut().zip(&largest).for_each(|(to, value)| *to = MaybeUninit::new(T::of(*value)));
    }
}

/// Adds the gradient of `x` to `dx`.
#[inline(always)]
fn route_gradient<T: Activation>((image, gradient, [x, output], dx): (Image, &[T], [&[T]; 2], &mut [f32])) {
    let mut left = vec![0.0; image.channels];
    for (place, from) in image.pooled().pixels() {
        left.iter_mut().zip(&gradient[from.clone()]).for_each(|(left, gradient)| *left = gradient.widened());
        for to in image.window(place) {
            let values = x[to.clone()].iter().zip(&output[from.clone()]);
            for ((dx, left), (x, output)) in dx[to].iter_mut().zip(&mut left).zip(values) {
                let share = if x.widened() == output.widened() { *left } else { 0.0 };
                *dx += share;
                *left -= share;
            }
        }
    }
}
