//! The kernels of `ops/winograd` on Flex's tensors, whose channels lie one behind the other: they are brought side by side
//! before and back after.

use std::mem::MaybeUninit;

use burn::tensor::Shape;
use rayon::prelude::*;

use super::lanes::Lanes;
use super::update::each;
use crate::ops::conv::Sliding;
use crate::ops::winograd::{Winograd, with_images};

/// A convolution that the kernels take.
pub(super) struct ChannelsFirst {
    plan: Winograd,
    inputs: Lanes,
    outputs: Lanes,
}

impl ChannelsFirst {
    /// None where the definition does better, or is asked for.
    pub(super) fn new(x: &Shape, weight: &Shape, sliding: Sliding) -> Option<Self> {
        let plan = sliding.winograd(x, weight, each)?;
        let pixels = x[2] * x[3];
        let [inputs, outputs] =
            [x[1], weight[0]].map(|channels| Lanes { channels, pixels, rows: pixels, lanes: channels });
        Some(Self { plan, inputs, outputs })
    }

    pub(super) fn forward(&self, x: &[f32], weight: &[f32], output: &mut [MaybeUninit<f32>]) {
        with_images([x.len(), output.len()], |[innermost, result]| {
            spread(self.inputs, x, innermost);
            self.plan.forward(innermost, weight, result);
            collect(self.outputs, result, output);
        });
    }

    pub(super) fn input_gradient(&self, weight: &[f32], gradient: &[f32], x: &mut [MaybeUninit<f32>]) {
        with_images([gradient.len(), x.len()], |[innermost, result]| {
            spread(self.outputs, gradient, innermost);
            self.plan.input_gradient(innermost, weight, result);
            collect(self.inputs, result, x);
        });
    }

    pub(super) fn weight_gradient(&self, x: &[f32], gradient: &[f32], weight: &mut [f32]) {
        with_images([x.len(), gradient.len()], |[x_innermost, innermost]| {
            spread(self.inputs, x, x_innermost);
            spread(self.outputs, gradient, innermost);
            self.plan.weight_gradient(x_innermost, innermost, weight);
        });
    }
}

/// Images with their channels side by side.
fn spread(image: Lanes, images: &[f32], innermost: &mut [f32]) {
    let pairs = images.par_chunks(image.panel()).zip(innermost.par_chunks_mut(image.panel()));
    pairs.for_each(|(from, to)| image.spread(from, to));
}

/// The inverse of [`spread`].
fn collect(image: Lanes, innermost: &[f32], images: &mut [MaybeUninit<f32>]) {
    let pairs = innermost.par_chunks(image.panel()).zip(images.par_chunks_mut(image.panel()));
    pairs.for_each(|(from, to)| image.collect(from, to));
}
