//! The three products of a convolution in the host's memory, for the backends whose tensors lie there: by Winograd's
//! algorithm where it applies, else by the definition. Images are NHWC.

use std::mem::MaybeUninit;

use burn::tensor::Shape;

use super::direct::{self, Geometry};
use super::host_epilogue::HostEpilogue;
use super::pieces::ParallelFor;
use super::sliding::{Algorithm, Sliding};
use super::winograd::Winograd;

/// The plan of a convolution of one size; it does not depend on the machine.
pub(super) struct HostConv {
    geometry: Geometry,
    winograd: Option<Winograd>,
}

impl HostConv {
    /// The convolution of images `x` with kernels `weight`, by their shapes as in [`super::ConvOps`].
    pub(super) fn new(x: &Shape, weight: &Shape, sliding: Sliding, parallel_for: ParallelFor) -> Self {
        let (size, kernel) = ([x[2], x[3]], [weight[2], weight[3]]);
        let geometry = Geometry { batch: x[0], inputs: x[1], outputs: weight[0], size, kernel, sliding, parallel_for };
        let fits = sliding == Sliding { stride: 1, padding: 1, algorithm: Algorithm::Auto } && kernel == [3, 3];
        let winograd = fits.then(|| Winograd::new([x[0], x[1], x[2], x[3]], weight[0], parallel_for)).flatten();
        Self { geometry, winograd }
    }

    /// Whether an epilogue is applied while the output is in a cache.
    pub(super) fn takes_epilogue(&self) -> bool {
        self.winograd.is_some()
    }

    /// Whether it is faster than oneDNN: by Winograd's algorithm, and for small maps, on which few of oneDNN's blocks
    /// are full (batches of 32 and 64, one and two threads of a Xeon with AVX-512).
    #[cfg(feature = "tch")]
    pub(super) fn beats_one_dnn(&self) -> bool {
        let g = &self.geometry;
        let is_small = g.sliding.algorithm == Algorithm::Auto && g.taps() > 1 && g.pixels() <= 4;
        self.winograd.is_some() || (is_small && g.inputs.is_multiple_of(16) && g.outputs.is_multiple_of(16))
    }

    /// The size of the output, `[batch, height, width, channels]`.
    pub(super) fn output(&self) -> [usize; 4] {
        let [height, width] = self.geometry.output();
        [self.geometry.batch, height, width, self.geometry.outputs]
    }

    /// The size of the input, `[batch, height, width, channels]`.
    pub(super) fn input(&self) -> [usize; 4] {
        let Geometry { batch, size, inputs, .. } = self.geometry;
        [batch, size[0], size[1], inputs]
    }

    /// Writes the output. Panics if there is an epilogue and [`HostConv::takes_epilogue`] is false.
    pub(super) fn forward(
        &self,
        x: &[f32],
        weight: &[f32],
        epilogue: Option<HostEpilogue>,
        output: &mut [MaybeUninit<f32>],
    ) {
        match self.winograd {
            Some(plan) => plan.forward_with(x, weight, epilogue, output),
            None => {
                assert!(epilogue.is_none(), "the epilogue of a direct convolution is a pass of its own");
                direct::forward(&self.geometry, x, weight, output);
            }
        }
    }

    /// Writes the gradient of the weight, `[outputs, inputs, height, width]`.
    pub(super) fn weight_gradient(&self, x: &[f32], gradient: &[f32], weight: &mut [MaybeUninit<f32>]) {
        match self.winograd {
            Some(plan) => plan.weight_gradient(x, gradient, weight),
            None => direct::weight_gradient(&self.geometry, x, gradient, weight),
        }
    }

    pub(super) fn input_gradient(&self, weight: &[f32], gradient: &[f32], x: &mut [MaybeUninit<f32>]) {
        match self.winograd {
            Some(plan) => plan.input_gradient(gradient, weight, x),
            None => direct::input_gradient(&self.geometry, weight, gradient, x),
        }
    }
}
