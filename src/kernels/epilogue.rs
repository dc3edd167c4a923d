//! Batch-norm with known statistics, the residual sum and ReLU in the host's memory: in a pass of its own
//! (`host_norm.rs`), or on the output of a convolution while it is in a cache (`winograd`), with the same bits.

use std::mem::MaybeUninit;

use super::activation::Activation;

/// `(x - mean) * scale + bias`, plus the shortcut if there is one, then ReLU if `relu`; values are
/// `[pixels][channels]`.
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a, T = f32> {
    /// Mean, scale and bias, of each channel.
    pub factors: [&'a [f32]; 3],
    /// As many values as there are pixels and channels.
    pub shortcut: Option<&'a [T]>,
    /// Whether negative values become zero.
    pub relu: bool,
}

impl<T: Activation> Epilogue<'_, T> {
    /// Of whole pixels; `at` is the number of values before them.
    #[inline(always)]
    pub fn rows(&self, x: &[T], at: usize, output: &mut [MaybeUninit<T>]) {
        let [mean, scale, bias] = self.factors;
        let channels = mean.len();
        let (scale, bias) = (&scale[..channels], &bias[..channels]);
        let rows = x.chunks_exact(channels).zip(output.chunks_exact_mut(channels));
        let Some(shortcut) = self.shortcut else {
            for (x, output) in rows {
                for c in 0..channels {
                    output[c].write(T::of(self.clamped((x[c].widened() - mean[c]) * scale[c] + bias[c])));
                }
            }
            return;
        };
        for ((x, output), shortcut) in rows.zip(shortcut[at..][..x.len()].chunks_exact(channels)) {
            for c in 0..channels {
                let normalized = (x[c].widened() - mean[c]) * scale[c] + bias[c];
                output[c].write(T::of(self.clamped(normalized + shortcut[c].widened())));
            }
        }
    }

    /// Of `N` channels of a pixel, from `channel` on; `at` is the number of values before them.
    #[inline(always)]
    pub fn channels<const N: usize>(&self, x: [f32; N], channel: usize, at: usize) -> [f32; N] {
        let [mean, scale, bias] = self.factors.map(|factors| &factors[channel..][..N]);
        let mut normalized = [0.0; N];
        for c in 0..N {
            normalized[c] = (x[c] - mean[c]) * scale[c] + bias[c];
        }
        if let Some(shortcut) = self.shortcut {
            let shortcut = &shortcut[at..][..N];
            for c in 0..N {
                normalized[c] += shortcut[c].widened();
            }
        }
        normalized.map(|value| self.clamped(value))
    }

    /// The comparison keeps NaN, which `f32::max` would drop.
    #[inline(always)]
    fn clamped(&self, value: f32) -> f32 {
        let floor = if self.relu { 0.0 } else { f32::NEG_INFINITY };
        if value < floor { floor } else { value }
    }
}
