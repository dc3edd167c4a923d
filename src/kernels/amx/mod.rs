//! Convolutions of bf16 by the definition on a matrix unit: sums in f32 of products of bf16, to which kernels are
//! rounded too.
//!
//! Read `block.rs` for the product of a block and `axis.rs` for how a block finds its pixels; `gather.rs` and
//! `weight_gradient.rs` are the products, `copy.rs` has the layouts that they read. The unit's bits are its own: it
//! adds in another order than the other algorithms and takes subnormal numbers for zero.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod assembly;
mod axis;
mod block;
mod copy;
mod emulation;
mod gather;
mod unit;
mod weight_gradient;

use std::mem::MaybeUninit;

use half::bf16;

use gather::Direction;

use crate::direct::Geometry;
use crate::epilogue::Epilogue;
use crate::vector::Shared;
pub use unit::MatrixUnit;

/// Most pixels of a kernel's side: more would leave the zeros between two rows.
const MOST_TAPS: usize = 16;

/// The plan of a convolution on a matrix unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Products {
    unit: MatrixUnit,
    geometry: Geometry,
}

impl Products {
    /// Whole tiles of channels are all that the unit takes: others, and a network's first layer, are as fast without.
    pub(super) fn new(unit: MatrixUnit, geometry: Geometry) -> Option<Self> {
        let Geometry { batch, inputs, outputs, kernel, padding, .. } = geometry;
        let is_whole = [inputs, outputs].iter().all(|channels| *channels > 0 && channels.is_multiple_of(block::SIDE));
        let is_usual = kernel.iter().all(|side| *side <= MOST_TAPS && padding < *side);
        (batch > 0 && is_whole && is_usual).then_some(Self { unit, geometry })
    }

    /// [`crate::Convolution::forward`].
    pub(super) fn forward(
        &self,
        x: &[bf16],
        weight: &[f32],
        epilogue: Option<Epilogue<bf16>>,
        output: &mut [MaybeUninit<bf16>],
    ) {
        self.check([x.len(), weight.len(), output.len()]);
        let to = Shared(output.as_mut_ptr().cast());
        gather::run(self.unit, Direction::Forward, &self.geometry, x, weight, epilogue, to);
    }

    /// [`crate::Convolution::input_gradient`].
    pub(super) fn input_gradient(&self, weight: &[f32], gradient: &[bf16], x: &mut [MaybeUninit<bf16>]) {
        self.check([x.len(), weight.len(), gradient.len()]);
        let to = Shared(x.as_mut_ptr().cast());
        gather::run(self.unit, Direction::InputGradient, &self.geometry, gradient, weight, None, to);
    }

    /// [`crate::Convolution::weight_gradient`].
    pub(super) fn weight_gradient(&self, x: &[bf16], gradient: &[bf16], weight: &mut [MaybeUninit<f32>]) {
        self.check([x.len(), weight.len(), gradient.len()]);
        weight_gradient::weight_gradient(self.unit, &self.geometry, x, gradient, weight);
    }

    /// Panics unless input, weight and output have the geometry's size.
    fn check(&self, lengths: [usize; 3]) {
        let g = &self.geometry;
        let [pixels, outputs] = [g.size.iter().product::<usize>(), g.pixels()].map(|pixels| g.batch * pixels);
        assert_eq!(lengths, [pixels * g.inputs, g.inputs * g.outputs * g.taps(), outputs * g.outputs], "sizes");
    }
}
