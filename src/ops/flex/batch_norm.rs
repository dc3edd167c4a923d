//! Batch-norm's loops: one pass over memory for each of its steps.
//!
//! Work is cut by channels or by images, never by threads.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use crate::ops::sums::{sum, sum_of_pairs};

/// The sizes of `[batch, channels, area]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) area: usize,
}

impl Sizes {
    /// A channel's planes, one per image.
    fn planes<'a>(&self, x: &'a [f32], channel: usize) -> impl Iterator<Item = &'a [f32]> {
        let (step, area) = (self.channels * self.area, self.area);
        (0..self.batch).map(move |image| &x[image * step + channel * area..][..area])
    }

    /// Two values for each channel, as two lists.
    fn per_channel(&self, values: impl Fn(usize) -> (f64, f64) + Sync + Send) -> [Vec<f32>; 2] {
        let pairs: Vec<(f64, f64)> = (0..self.channels).into_par_iter().map(values).collect();
        let (first, second) = pairs.into_iter().map(|(a, b)| (a as f32, b as f32)).unzip();
        [first, second]
    }

    /// Mean and sum of squared deviations from it, per channel.
    pub(super) fn moments(&self, x: &[f32]) -> [Vec<f32>; 2] {
        self.per_channel(|channel| {
            let total: f64 = self.planes(x, channel).map(|plane| sum(plane, |value| value)).sum();
            let mean = (total / (self.batch * self.area) as f64) as f32;
            let squares = self.planes(x, channel).map(|plane| sum(plane, |value| (value - mean) * (value - mean)));
            (f64::from(mean), squares.sum())
        })
    }

    /// `sum(gradient)` and `sum(gradient * (x - mean))`, per channel.
    pub(super) fn gradient_sums(&self, gradient: &[f32], x: &[f32], mean: &[f32]) -> [Vec<f32>; 2] {
        self.per_channel(|channel| {
            let mean = mean[channel];
            let planes = self.planes(gradient, channel).zip(self.planes(x, channel));
            planes.fold((0.0, 0.0), |total, (gradient, x)| {
                let weighted = sum_of_pairs(gradient, x, |gradient, x| gradient * (x - mean));
                (total.0 + sum(gradient, |value| value), total.1 + weighted)
            })
        })
    }

    /// `(x - mean) * scale + bias`, into `output`.
    pub(super) fn normalize(&self, x: &[f32], [mean, scale, bias]: [&[f32]; 3], output: &mut [MaybeUninit<f32>]) {
        self.each_plane(output, |at, channel, output| {
            let (mean, scale, bias) = (mean[channel], scale[channel], bias[channel]);
            for (output, x) in output.iter_mut().zip(&x[at..]) {
                output.write((x - mean) * scale + bias);
            }
        });
    }

    /// `gradient * k - (x - mean) * q - r`, in place of `gradient`.
    pub(super) fn input_gradient(&self, gradient: &mut [f32], x: &[f32], [mean, k, q, r]: [&[f32]; 4]) {
        self.each_plane(gradient, |at, channel, gradient| {
            let (mean, k, q, r) = (mean[channel], k[channel], q[channel], r[channel]);
            for (gradient, x) in gradient.iter_mut().zip(&x[at..]) {
                *gradient = *gradient * k - ((x - mean) * q + r);
            }
        });
    }

    /// Calls `write` with the offset, the channel and the values of every plane, in parallel over images.
    fn each_plane<T: Send>(&self, output: &mut [T], write: impl Fn(usize, usize, &mut [T]) + Sync) {
        let image = self.channels * self.area;
        output.par_chunks_mut(image).enumerate().for_each(|(i, output)| {
            for (channel, output) in output.chunks_mut(self.area).enumerate() {
                write(i * image + channel * self.area, channel, output);
            }
        });
    }
}
