//! 3x3 convolutions by tiles of 4x4 outputs on the CPU: those of stride 1 by F(4x4, 3x3), a quarter of the
//! multiplications of the definition; those of stride 2 by phases, 9/16 of them.
//!
//! `transform.rs` and `strided.rs` are the mathematics, `form.rs` says what is multiplied; `correlation.rs` and
//! `weight_gradient.rs` plan the three products; `tiles.rs`, `kernels.rs` and `product.rs` are their parts, written
//! over the vectors of `vector`.
//!
//! Results depend bitwise on the sizes alone: the order of sums does not depend on threads, instruction set or caches.

mod correlation;
mod form;
mod kernels;
mod product;
mod strided;
mod tiles;
mod transform;
mod weight_gradient;

use std::ops::Range;

use super::activation::Activation;
use super::epilogue::Epilogue;
use super::pieces::ParallelFor;
use super::vector::{LANES, Memory, Set, Shared};
use correlation::Correlation;
use form::Form;
use tiles::Grid;
use transform::{TAPS, TILE};
use weight_gradient::WeightGradient;

/// The plan of a convolution of one size.
#[derive(Clone, Copy)]
pub struct Winograd {
    inputs: usize,
    outputs: usize,
    form: &'static Form,
    /// Tiles of the input and of the output, one to one.
    grids: [Grid; 2],
    /// Pixels of all images of the input and of the output.
    pixels: [usize; 2],
    parallel_for: ParallelFor,
    set: Set,
}

impl Winograd {
    /// The convolution of `[batch, inputs, height, width]` with `[outputs, inputs, 3, 3]`, padded by one. `None` if the
    /// direct algorithm is better: if the stride is above 2, channels do not fill vectors, or tiles extend so far
    /// beyond the output that little is saved. The choice does not depend on the batch size, so an image's result does
    /// not either.
    pub fn new(x: [usize; 4], outputs: usize, stride: usize, parallel_for: ParallelFor) -> Option<Self> {
        let [batch, inputs, height, width] = x;
        let form = Form::new(stride)?;
        let sizes = [[height, width], [height, width].map(|size| size.div_ceil(stride))];
        let grids = [Grid::new(batch, sizes[0], TILE * stride), Grid::new(batch, sizes[1], TILE)];
        let pixels = sizes.map(|[height, width]| batch * height * width);
        let saves = pixels[1] >= grids[1].tiles * form.least_pixels;
        let fills = inputs.is_multiple_of(LANES) && outputs.is_multiple_of(LANES);
        let any = pixels[1] * inputs * outputs > 0;
        let set = Set::best();
        (saves && fills && any).then_some(Self { inputs, outputs, form, grids, pixels, parallel_for, set })
    }

    /// The same plan with another instruction set. Panics if the processor lacks it.
    pub fn on(self, set: Set) -> Self {
        assert!(Set::available().contains(&set), "the processor has the instruction set");
        Self { set, ..self }
    }

    /// Writes the output `y` `[batch, out_height, out_width, outputs]`, from `x` `[batch, height, width, inputs]`.
    pub fn forward<T: Activation>(&self, x: &[T], kernels: &[f32], y: &mut [impl Memory<T>]) {
        self.forward_with(x, kernels, None, y);
    }

    /// As [`Winograd::forward`], with an epilogue of the output.
    pub fn forward_with<T: Activation>(
        &self,
        x: &[T],
        kernels: &[f32],
        epilogue: Option<Epilogue<T>>,
        y: &mut [impl Memory<T>],
    ) {
        self.check([x.len(), kernels.len(), y.len()]);
        let (from, kernels, to) = (Shared::of(x), Shared::of(kernels), Shared(y.as_mut_ptr().cast()));
        let (channels, outputs) = (self.inputs, self.outputs);
        // SAFETY: the lengths are those of the plan.
        unsafe { Correlation { plan: self, from, channels, kernels, to, outputs, turned: false, epilogue }.run() };
    }

    /// Writes the gradient of the input, in NHWC, to `x`.
    pub fn input_gradient<T: Activation>(&self, gradient: &[T], kernels: &[f32], x: &mut [impl Memory<T>]) {
        self.check([x.len(), kernels.len(), gradient.len()]);
        let (from, kernels, to) = (Shared::of(gradient), Shared::of(kernels), Shared(x.as_mut_ptr().cast()));
        let (channels, outputs) = (self.outputs, self.inputs);
        // SAFETY: as above.
        unsafe { Correlation { plan: self, from, channels, kernels, to, outputs, turned: true, epilogue: None }.run() };
    }

    /// Writes the gradient of the kernels, `[outputs, inputs, 3, 3]`, to `kernels`.
    pub fn weight_gradient<T: Activation>(&self, x: &[T], gradient: &[T], kernels: &mut [impl Memory<f32>]) {
        self.check([x.len(), kernels.len(), gradient.len()]);
        let (x, gradient, kernels) = (Shared::of(x), Shared::of(gradient), Shared(kernels.as_mut_ptr().cast()));
        // SAFETY: as above.
        unsafe { WeightGradient { plan: self, x, gradient, kernels }.run() };
    }

    /// Tiles of all images.
    fn tiles(&self) -> usize {
        self.grids[0].tiles
    }

    fn check(&self, lengths: [usize; 3]) {
        let expected = [self.pixels[0] * self.inputs, self.inputs * self.outputs * TAPS, self.pixels[1] * self.outputs];
        assert_eq!(lengths, expected, "the values are those of the size");
    }
}

/// Channels of a panel: two vectors if they divide `channels`, else one.
fn panel(channels: usize) -> usize {
    if channels.is_multiple_of(2 * LANES) { 2 * LANES } else { LANES }
}

/// One of `parts` parts of a range, whose lengths differ by at most one.
fn part(of: &Range<usize>, number: usize, parts: usize) -> Range<usize> {
    of.start + of.len() * number / parts..of.start + of.len() * (number + 1) / parts
}
