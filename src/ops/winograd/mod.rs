//! 3x3 convolutions of stride 1 by F(4x4, 3x3) on the host's processor: a quarter of the multiplications of the definition.
//!
//! `transform.rs` is the mathematics, `correlation.rs` and `weight_gradient.rs` the plans of the three products; `tiles.rs`,
//! `kernels.rs` and `product.rs` what they are made of, over the vectors of `vector.rs`; `transpose.rs` and `matrix.rs` turn
//! rows into columns.
//!
//! Bits depend on the sizes alone: neither threads nor their number, nor the instruction set, nor a cache divides a sum.

mod correlation;
mod kernels;
#[cfg(feature = "flex")]
mod matrix;
mod product;
mod scratch;
mod tiles;
mod transform;
mod transpose;
mod vector;
mod weight_gradient;

use std::mem::MaybeUninit;
use std::ops::Range;

use super::pieces::Each;
use correlation::Correlation;
#[cfg(feature = "flex")]
pub(crate) use matrix::transpose;
use tiles::Grid;
use transform::TAPS;
use vector::LANES as SIXTEEN;
pub use vector::Set;
pub(crate) use vector::widely;
use weight_gradient::WeightGradient;

/// A convolution of one size, and how it is computed.
#[derive(Clone, Copy)]
pub struct Winograd {
    inputs: usize,
    outputs: usize,
    /// Pixels of all images.
    pixels: usize,
    grid: Grid,
    each: Each,
    set: Set,
}

impl Winograd {
    /// The convolution of `[batch, inputs, height, width]` with `[outputs, inputs, 3, 3]`, padded by one; none where the
    /// definition does better: where channels do not fill vectors, or less than half of the multiplications is saved. What
    /// becomes of an image does not depend on those beside it, so their number has no say.
    pub fn new(x: [usize; 4], outputs: usize, each: Each) -> Option<Self> {
        let [batch, inputs, height, width] = x;
        let grid = Grid::new(batch, [height, width]);
        let pixels = batch * height * width;
        let saves = grid.tiles * 2 * transform::FREQUENCIES <= pixels * TAPS;
        let fills = inputs.is_multiple_of(SIXTEEN) && outputs.is_multiple_of(SIXTEEN);
        let any = pixels * inputs * outputs > 0;
        (saves && fills && any).then(|| Self { inputs, outputs, pixels, grid, each, set: Set::best() })
    }

    /// The same on another instruction set.
    pub fn on(self, set: Set) -> Self {
        assert!(Set::available().contains(&set), "the processor has the instruction set");
        Self { set, ..self }
    }

    /// The output, from the input.
    pub fn forward(&self, x: &[f32], kernels: &[f32], y: &mut [impl Place]) {
        self.check([x.len(), kernels.len(), y.len()]);
        let (from, kernels, to) = (Shared::of(x), Shared::of(kernels), Shared(y.as_mut_ptr().cast()));
        let (channels, outputs) = (self.inputs, self.outputs);
        // SAFETY: the lengths are those of the plan.
        unsafe { Correlation { plan: self, from, channels, kernels, to, outputs, turned: false }.run() };
    }

    /// The gradient of the input, from that of the output.
    pub fn input_gradient(&self, gradient: &[f32], kernels: &[f32], x: &mut [impl Place]) {
        self.check([x.len(), kernels.len(), gradient.len()]);
        let (from, kernels, to) = (Shared::of(gradient), Shared::of(kernels), Shared(x.as_mut_ptr().cast()));
        let (channels, outputs) = (self.outputs, self.inputs);
        // SAFETY: as above.
        unsafe { Correlation { plan: self, from, channels, kernels, to, outputs, turned: true }.run() };
    }

    /// The gradient of the kernels.
    pub fn weight_gradient(&self, x: &[f32], gradient: &[f32], kernels: &mut [impl Place]) {
        self.check([x.len(), kernels.len(), gradient.len()]);
        let (x, gradient, kernels) = (Shared::of(x), Shared::of(gradient), Shared(kernels.as_mut_ptr().cast()));
        // SAFETY: as above.
        unsafe { WeightGradient { plan: self, x, gradient, kernels }.run() };
    }

    fn check(&self, lengths: [usize; 3]) {
        let expected = [self.pixels * self.inputs, self.inputs * self.outputs * TAPS, self.pixels * self.outputs];
        assert_eq!(lengths, expected, "the values are those of the size");
    }
}

/// Memory for an f32.
///
/// # Safety
///
/// Its bits are those of the f32 that is put there.
pub unsafe trait Place {
    /// Puts it there.
    fn put(&mut self, value: f32);
}

// SAFETY: it is one.
unsafe impl Place for f32 {
    fn put(&mut self, value: f32) {
        *self = value;
    }
}

// SAFETY: it has the layout of one.
unsafe impl Place for MaybeUninit<f32> {
    fn put(&mut self, value: f32) {
        self.write(value);
    }
}

/// An address that several threads use, each its part of what is there.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: whoever reads or writes at the address says why it may.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Of values that are only read.
    fn of(values: &[f32]) -> Self {
        Self(values.as_ptr().cast_mut())
    }

    fn at(self, value: usize) -> *mut f32 {
        self.0.wrapping_add(value)
    }
}

/// Channels that a panel has side by side: two vectors, if they come out even.
fn panel(channels: usize) -> usize {
    if channels.is_multiple_of(2 * SIXTEEN) { 2 * SIXTEEN } else { SIXTEEN }
}

/// One of `parts` parts of a range, which are as even as can be.
fn part(of: &Range<usize>, number: usize, parts: usize) -> Range<usize> {
    of.start + of.len() * number / parts..of.start + of.len() * (number + 1) / parts
}
