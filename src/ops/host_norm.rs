//! Batch-norm with what stands behind it, a shortcut and the rectifier, in the host's memory: activations are `[pixels][channels]`,
//! and each step passes over memory once.
//!
//! Pixels are cut into pieces by the number of channels alone. A piece is summed in f32, around a mean of its own, and the
//! pieces in f64 in their order: no thread changes a bit.

use std::mem::MaybeUninit;

use super::pieces::{Each, on_pieces};
use super::winograd::widely;

/// Values of a piece, which stays in a cache while it is read twice.
const VALUES: usize = 1 << 14;
/// Pixels of a piece at most: so many values are summed in f32.
const PIXELS: usize = 256;

/// Values per channel in the order of the pieces: one for each channel.
type Lists<const N: usize> = [Vec<f32>; N];

/// What to do it with.
#[derive(Clone, Copy)]
pub(super) struct HostNorm {
    pub(super) channels: usize,
    pub(super) each: Each,
}

impl HostNorm {
    /// Values of a piece, whole pixels.
    fn piece(&self) -> usize {
        (VALUES / self.channels).clamp(1, PIXELS) * self.channels
    }

    /// Mean and sum of squared deviations from it, per channel.
    pub(super) fn moments(&self, x: &[f32]) -> Lists<2> {
        // Of each piece: its mean, and the sums of deviations from that and of their squares.
        let mut pieces = self.lists::<3>(x.len());
        on_pieces(x.chunks(self.piece()).zip(&mut pieces), self.each, |(x, [mean, sum, squares])| {
            let count = (x.len() / self.channels) as f32;
            widely(add_rows, (*x, mean.as_mut_slice()));
            mean.iter_mut().for_each(|sum| *sum /= count);
            widely(add_deviations, (*x, mean.as_slice(), [sum.as_mut_slice(), squares.as_mut_slice()]));
        });
        let counts = x.chunks(self.piece()).map(|x| (x.len() / self.channels) as f64);
        let (pixels, pieces) = ((x.len() / self.channels) as f64, counts.zip(&pieces));
        let of_channel = |c: usize| {
            let pieces = pieces.clone().map(|(count, lists)| (count, lists.each_ref().map(|list| f64::from(list[c]))));
            let mean = pieces.clone().map(|(count, [mean, sum, _])| count * mean + sum).sum::<f64>() / pixels;
            let m2 = pieces.map(|(count, [own, sum, squares])| {
                let off = mean - own;
                squares - off * (2.0 * sum - count * off)
            });
            (mean as f32, m2.sum::<f64>() as f32)
        };
        let (mean, m2) = (0..self.channels).map(of_channel).unzip();
        [mean, m2]
    }

    /// `(x - mean) * scale + bias`, with the shortcut added if there is one, and rectified if that is asked for.
    pub(super) fn normalize(
        &self,
        x: &[f32],
        factors: [&[f32]; 3],
        shortcut: Option<&[f32]>,
        rectified: bool,
        output: &mut [MaybeUninit<f32>],
    ) {
        let pieces = x.chunks(self.piece()).zip(output.chunks_mut(self.piece())).enumerate();
        on_pieces(pieces, self.each, |(i, (x, output))| {
            let shortcut = shortcut.map(|shortcut| &shortcut[*i * self.piece()..][..x.len()]);
            widely(normalize_rows, (*x, factors, shortcut, rectified, &mut **output));
        });
    }

    /// Zero where the output is not positive.
    pub(super) fn rectify(&self, gradient: &mut [f32], output: &[f32]) {
        let pieces = gradient.chunks_mut(self.piece()).zip(output.chunks(self.piece()));
        on_pieces(pieces, self.each, |(gradient, output)| widely(rectify, (&mut **gradient, *output)));
    }

    /// `sum(gradient)` and `sum(gradient * (x - mean))`, per channel; of the gradient only where what `sign` normalises is
    /// positive, if it is given.
    pub(super) fn gradient_sums(
        &self,
        gradient: &[f32],
        x: &[f32],
        mean: &[f32],
        sign: Option<[&[f32]; 2]>,
    ) -> Lists<2> {
        let mut pieces = self.lists::<2>(x.len());
        let of_piece = gradient.chunks(self.piece()).zip(x.chunks(self.piece())).zip(&mut pieces);
        on_pieces(of_piece, self.each, |((gradient, x), [sums, weighted])| {
            widely(add_gradients, (*gradient, *x, mean, sign, [sums.as_mut_slice(), weighted.as_mut_slice()]));
        });
        [0, 1].map(|list| {
            let total = |c: usize| pieces.iter().map(|lists| f64::from(lists[list][c])).sum::<f64>() as f32;
            (0..self.channels).map(total).collect()
        })
    }

    /// `gradient * k - ((x - mean) * q + r)`, with the gradient as [`HostNorm::gradient_sums`] takes it.
    pub(super) fn input_gradient(
        &self,
        gradient: &[f32],
        x: &[f32],
        factors: [&[f32]; 4],
        sign: Option<[&[f32]; 2]>,
        output: &mut [MaybeUninit<f32>],
    ) {
        let pieces = gradient.chunks(self.piece()).zip(x.chunks(self.piece())).zip(output.chunks_mut(self.piece()));
        on_pieces(pieces, self.each, |((gradient, x), output)| {
            widely(input_gradient_rows, (*gradient, *x, factors, sign, &mut **output));
        });
    }

    /// Zeros for each piece of so many values.
    fn lists<const N: usize>(&self, values: usize) -> Vec<Lists<N>> {
        (0..values.div_ceil(self.piece())).map(|_| [(); N].map(|()| vec![0.0; self.channels])).collect()
    }
}

#[inline(always)]
fn add_rows((x, sums): (&[f32], &mut [f32])) {
    for x in x.chunks_exact(sums.len()) {
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
    }
}

#[inline(always)]
fn add_deviations((x, mean, [sums, squares]): (&[f32], &[f32], [&mut [f32]; 2])) {
    let channels = mean.len();
    let (sums, squares) = (&mut sums[..channels], &mut squares[..channels]);
    for x in x.chunks_exact(channels) {
        for c in 0..channels {
            let off = x[c] - mean[c];
            sums[c] += off;
            squares[c] += off * off;
        }
    }
}

/// Input, factors, shortcut, whether it is rectified, output.
type Normalized<'a> = (&'a [f32], [&'a [f32]; 3], Option<&'a [f32]>, bool, &'a mut [MaybeUninit<f32>]);

#[inline(always)]
fn normalize_rows((x, [mean, scale, bias], shortcut, rectified, output): Normalized) {
    let channels = mean.len();
    let (scale, bias) = (&scale[..channels], &bias[..channels]);
    // What is no number stays none.
    let floor = if rectified { 0.0 } else { f32::NEG_INFINITY };
    let above = |value: f32| MaybeUninit::new(if value < floor { floor } else { value });
    let rows = x.chunks_exact(channels).zip(output.chunks_exact_mut(channels));
    let Some(shortcut) = shortcut else {
        for (x, output) in rows {
            for c in 0..channels {
                output[c] = above((x[c] - mean[c]) * scale[c] + bias[c]);
            }
        }
        return;
    };
    for ((x, output), shortcut) in rows.zip(shortcut.chunks_exact(channels)) {
        for c in 0..channels {
            output[c] = above((x[c] - mean[c]) * scale[c] + bias[c] + shortcut[c]);
        }
    }
}

#[inline(always)]
fn rectify((gradient, output): (&mut [f32], &[f32])) {
    gradient.iter_mut().zip(output).for_each(|(gradient, output)| *gradient = kept(*gradient, *output));
}

/// A gradient where the output is positive.
#[inline(always)]
fn kept(gradient: f32, output: f32) -> f32 {
    if output > 0.0 { gradient } else { 0.0 }
}

/// Gradient, input, mean, what its sign follows from, both sums.
type Added<'a> = (&'a [f32], &'a [f32], &'a [f32], Option<[&'a [f32]; 2]>, [&'a mut [f32]; 2]);

#[inline(always)]
fn add_gradients((gradient, x, mean, sign, [sums, weighted]): Added) {
    let channels = mean.len();
    let (sums, weighted) = (&mut sums[..channels], &mut weighted[..channels]);
    let rows = gradient.chunks_exact(channels).zip(x.chunks_exact(channels));
    let Some([scale, bias]) = sign.map(|factors| factors.map(|factor| &factor[..channels])) else {
        for (gradient, x) in rows {
            for c in 0..channels {
                sums[c] += gradient[c];
                weighted[c] += gradient[c] * (x[c] - mean[c]);
            }
        }
        return;
    };
    for (gradient, x) in rows {
        for c in 0..channels {
            let off = x[c] - mean[c];
            let gradient = kept(gradient[c], off * scale[c] + bias[c]);
            sums[c] += gradient;
            weighted[c] += gradient * off;
        }
    }
}

/// Gradient, input, factors, what its sign follows from, output.
type Written<'a> = (&'a [f32], &'a [f32], [&'a [f32]; 4], Option<[&'a [f32]; 2]>, &'a mut [MaybeUninit<f32>]);

#[inline(always)]
fn input_gradient_rows((gradient, x, [mean, k, q, r], sign, output): Written) {
    let channels = mean.len();
    let (k, q, r) = (&k[..channels], &q[..channels], &r[..channels]);
    let rows = gradient.chunks_exact(channels).zip(x.chunks_exact(channels)).zip(output.chunks_exact_mut(channels));
    let Some([scale, bias]) = sign.map(|factors| factors.map(|factor| &factor[..channels])) else {
        for ((gradient, x), output) in rows {
            for c in 0..channels {
                output[c] = MaybeUninit::new(gradient[c] * k[c] - ((x[c] - mean[c]) * q[c] + r[c]));
            }
        }
        return;
    };
    for ((gradient, x), output) in rows {
        for c in 0..channels {
            let off = x[c] - mean[c];
            let gradient = kept(gradient[c], off * scale[c] + bias[c]);
            output[c] = MaybeUninit::new(gradient * k[c] - (off * q[c] + r[c]));
        }
    }
}
