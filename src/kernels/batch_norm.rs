//! Batch-norm in the host's memory, fused with the residual sum and ReLU: activations are `[pixels][channels]` of any
//! [`Activation`], and each step passes over memory once.
//!
//! Pixels are split into pieces by the number of channels alone. A piece is summed in f32 around its own mean, the
//! pieces in f64 and in order: results do not depend on threads.

use std::mem::MaybeUninit;

use super::activation::Activation;
use super::epilogue::Epilogue;
use super::pieces::{ParallelFor, on_pieces};
use super::vector::vectorized;

/// Values of a piece: it stays in a cache while it is read twice.
const VALUES: usize = 1 << 14;
/// Most pixels of a piece: the length of an f32 sum.
const PIXELS: usize = 256;

/// `N` values per channel.
type PerChannel<const N: usize> = [Vec<f32>; N];

/// The loops for activations of one number of channels.
#[derive(Clone, Copy)]
pub struct BatchNorm {
    pub channels: usize,
    pub parallel_for: ParallelFor,
}

impl BatchNorm {
    /// `1 / sqrt(m2 / count + epsilon)`, that times `weight`, and `m2 / free`.
    pub fn factors(m2: &[f32], weight: &[f32], [count, free, epsilon]: [f64; 3]) -> PerChannel<3> {
        let (count, free, epsilon) = (count as f32, free as f32, epsilon as f32);
        let inv_std: Vec<f32> = m2.iter().map(|m2| 1.0 / (m2 / count + epsilon).sqrt()).collect();
        let scale = weight.iter().zip(&inv_std).map(|(weight, inv_std)| weight * inv_std).collect();
        [inv_std, scale, m2.iter().map(|m2| m2 / free).collect()]
    }

    /// The factors of [`BatchNorm::input_gradient`] from the sums of the gradient, and of the gradient times the
    /// normalised input; `share` is one over the number of values.
    pub fn gradient_factors([weight, inv_std, sum, weighted]: [&[f32]; 4], share: f64) -> PerChannel<3> {
        let share = share as f32;
        let k: Vec<f32> = weight.iter().zip(inv_std).map(|(weight, inv_std)| weight * inv_std).collect();
        let times = |factor: f32, sums: &[f32], c: usize| factor * (sums[c] * share);
        let q = (0..k.len()).map(|c| times(k[c] * inv_std[c], weighted, c)).collect();
        let r = (0..k.len()).map(|c| times(k[c], sum, c)).collect();
        [k, q, r]
    }

    /// Values of a piece: whole pixels.
    fn piece(&self) -> usize {
        (VALUES / self.channels).clamp(1, PIXELS) * self.channels
    }

    /// Mean and sum of squared deviations, per channel.
    pub fn moments<T: Activation>(&self, x: &[T]) -> PerChannel<2> {
        // Of each piece: mean, sum of deviations from it, and sum of their squares.
        let mut pieces = self.lists::<3>(x.len());
        on_pieces(x.chunks(self.piece()).zip(&mut pieces), self.parallel_for, |(x, [mean, sum, squares])| {
            let count = (x.len() / self.channels) as f32;
            vectorized(add_rows, (*x, mean.as_mut_slice()));
            mean.iter_mut().for_each(|sum| *sum /= count);
            vectorized(add_deviations, (*x, mean.as_slice(), [sum.as_mut_slice(), squares.as_mut_slice()]));
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

    /// The epilogue of `x`.
    pub fn normalize<T: Activation>(&self, x: &[T], epilogue: &Epilogue<T>, output: &mut [MaybeUninit<T>]) {
        let pieces = x.chunks(self.piece()).zip(output.chunks_mut(self.piece())).enumerate();
        on_pieces(pieces, self.parallel_for, |(i, (x, output))| {
            vectorized(|(x, output)| epilogue.rows(x, *i * self.piece(), output), (*x, &mut **output));
        });
    }

    /// The backward pass of ReLU in place: zero where the output is not positive.
    pub fn relu_backward<T: Activation>(&self, gradient: &mut [T], output: &[T]) {
        let pieces = gradient.chunks_mut(self.piece()).zip(output.chunks(self.piece()));
        on_pieces(pieces, self.parallel_for, |(gradient, output)| {
            vectorized(relu_backward, (&mut **gradient, *output))
        });
    }

    /// `sum(gradient)` and `sum(gradient * (x - mean))`, per channel. With `mask` (scale and bias), the gradient counts
    /// only where `(x - mean) * scale + bias` is positive.
    pub fn gradient_sums<T: Activation>(
        &self,
        gradient: &[T],
        x: &[T],
        mean: &[f32],
        mask: Option<[&[f32]; 2]>,
    ) -> PerChannel<2> {
        let mut pieces = self.lists::<2>(x.len());
        let of_piece = gradient.chunks(self.piece()).zip(x.chunks(self.piece())).zip(&mut pieces);
        on_pieces(of_piece, self.parallel_for, |((gradient, x), [sums, weighted])| {
            vectorized(add_gradients, (*gradient, *x, mean, mask, [sums.as_mut_slice(), weighted.as_mut_slice()]));
        });
        [0, 1].map(|list| {
            let total = |c: usize| pieces.iter().map(|lists| f64::from(lists[list][c])).sum::<f64>() as f32;
            (0..self.channels).map(total).collect()
        })
    }

    /// `gradient * k - ((x - mean) * q + r)`, with the gradient masked as in [`BatchNorm::gradient_sums`].
    pub fn input_gradient<T: Activation>(
        &self,
        gradient: &[T],
        x: &[T],
        factors: [&[f32]; 4],
        mask: Option<[&[f32]; 2]>,
        output: &mut [MaybeUninit<T>],
    ) {
        let pieces = gradient.chunks(self.piece()).zip(x.chunks(self.piece())).zip(output.chunks_mut(self.piece()));
        on_pieces(pieces, self.parallel_for, |((gradient, x), output)| {
            vectorized(input_gradient_rows, (*gradient, *x, factors, mask, &mut **output));
        });
    }

    /// Zeros for each piece of `values` values.
    fn lists<const N: usize>(&self, values: usize) -> Vec<PerChannel<N>> {
        (0..values.div_ceil(self.piece())).map(|_| [(); N].map(|()| vec![0.0; self.channels])).collect()
    }
}

#[inline(always)]
fn add_rows<T: Activation>((x, sums): (&[T], &mut [f32])) {
    for x in x.chunks_exact(sums.len()) {
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x.widened());
    }
}

#[inline(always)]
fn add_deviations<T: Activation>((x, mean, [sums, squares]): (&[T], &[f32], [&mut [f32]; 2])) {
    let channels = mean.len();
    let (sums, squares) = (&mut sums[..channels], &mut squares[..channels]);
    for x in x.chunks_exact(channels) {
        for c in 0..channels {
            let off = x[c].widened() - mean[c];
            sums[c] += off;
            squares[c] += off * off;
        }
    }
}

#[inline(always)]
fn relu_backward<T: Activation>((gradient, output): (&mut [T], &[T])) {
    let mask = |(gradient, output): (&mut T, &T)| *gradient = T::of(masked(gradient.widened(), output.widened()));
    gradient.iter_mut().zip(output).for_each(mask);
}

/// The gradient of ReLU's input.
#[inline(always)]
fn masked(gradient: f32, output: f32) -> f32 {
    if output > 0.0 { gradient } else { 0.0 }
}

/// Gradient, input, mean, scale and bias of the ReLU mask, both sums.
type SumArgs<'a, T> = (&'a [T], &'a [T], &'a [f32], Option<[&'a [f32]; 2]>, [&'a mut [f32]; 2]);

#[inline(always)]
fn add_gradients<T: Activation>((gradient, x, mean, mask, [sums, weighted]): SumArgs<T>) {
    let channels = mean.len();
    let (sums, weighted) = (&mut sums[..channels], &mut weighted[..channels]);
    let rows = gradient.chunks_exact(channels).zip(x.chunks_exact(channels));
    let Some([scale, bias]) = mask.map(|factors| factors.map(|factor| &factor[..channels])) else {
        for (gradient, x) in rows {
            for c in 0..channels {
                let gradient = gradient[c].widened();
                sums[c] += gradient;
                weighted[c] += gradient * (x[c].widened() - mean[c]);
            }
        }
        return;
    };
    for (gradient, x) in rows {
        for c in 0..channels {
            let off = x[c].widened() - mean[c];
            let gradient = masked(gradient[c].widened(), off * scale[c] + bias[c]);
            sums[c] += gradient;
            weighted[c] += gradient * off;
        }
    }
}

/// Gradient, input, factors, scale and bias of the ReLU mask, output.
type InputGradientArgs<'a, T> = (&'a [T], &'a [T], [&'a [f32]; 4], Option<[&'a [f32]; 2]>, &'a mut [MaybeUninit<T>]);

#[inline(always)]
fn input_gradient_rows<T: Activation>((gradient, x, [mean, k, q, r], mask, output): InputGradientArgs<T>) {
    let channels = mean.len();
    let (k, q, r) = (&k[..channels], &q[..channels], &r[..channels]);
    let rows = gradient.chunks_exact(channels).zip(x.chunks_exact(channels)).zip(output.chunks_exact_mut(channels));
    let Some([scale, bias]) = mask.map(|factors| factors.map(|factor| &factor[..channels])) else {
        for ((gradient, x), output) in rows {
            for c in 0..channels {
                let off = x[c].widened() - mean[c];
                output[c] = MaybeUninit::new(T::of(gradient[c].widened() * k[c] - (off * q[c] + r[c])));
            }
        }
        return;
    };
    for ((gradient, x), output) in rows {
        for c in 0..channels {
            let off = x[c].widened() - mean[c];
            let gradient = masked(gradient[c].widened(), off * scale[c] + bias[c]);
            output[c] = MaybeUninit::new(T::of(gradient * k[c] - (off * q[c] + r[c])));
        }
    }
}
