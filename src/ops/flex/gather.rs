//! Forward pass and input gradient: every pixel of the target gathers what it needs from the padded source.
//!
//! Both are sums over source channels and kernel taps, `target[pixel] = sum source[pixel + tap] * weight[tap]`. With a
//! stride, the input gradient falls into phases: pixels whose place relative to the stride is the same see the same
//! taps. Each phase is a stride-1 sum with a part of the kernel, and no multiplication by zero is made up.

use std::mem::MaybeUninit;
use std::ops::Range;

use rayon::prelude::*;

use super::geometry::{Geometry, images_at_once, part};
use super::lanes::Lanes;
use super::planes::{Images, Planes};
use super::scratch;
use super::tile::{self, ROWS, Row, Step};
use crate::ops::conv::Sliding;

/// Pixels of the target that one task computes at least, if the batch has them.
const TASK_PIXELS: usize = 64;

/// Pixels of the target that see the same taps.
struct Phase {
    /// Pixels of all images of a task, in whole tiles.
    rows: Vec<Row>,
    /// Taps of each source channel of a part.
    steps: Vec<Step>,
    taps: usize,
}

/// One pass over a batch: how target pixels are made of source pixels.
struct Gather {
    planes: Planes,
    /// Pixels of the kernel.
    taps: usize,
    target: Lanes,
    /// Images per task.
    images: usize,
    /// Whether one task has all images.
    is_single: bool,
    phases: Vec<Phase>,
    /// Target channels as lanes, a row for each source channel and tap.
    weight: Lanes,
    weights: Vec<f32>,
}

/// `output[n, o] = sum over i of x[n, i] * weight[o, i]`, into `output`.
pub(super) fn forward(g: &Geometry, x: &[f32], weight: &[f32], output: &mut [MaybeUninit<f32>]) {
    let ([height, width], stride) = (g.output(), g.sliding.stride);
    let planes = g.padded_input(part(g.inputs, g.taps()));
    let depth = g.inputs * g.taps();
    let mut gather = Gather::new(g, planes, height * width, Lanes::new(g.outputs, depth, depth), weight);
    let pixels = grid([height, width]).map(|(y, x)| ((y * planes.width + x) * stride * planes.channels, y * width + x));
    let taps = grid(g.kernel).map(|(y, x)| ((y * planes.width + x) * planes.channels, y * g.kernel[1] + x));
    gather.add_phase(pixels.collect(), taps.collect());
    gather.run(Images { values: x, channels: g.inputs, height: g.size[0], width: g.size[1] }, output);
}

/// `x[n, i] = sum over o of gradient[n, o] * weight[o, i]`, into `x`.
pub(super) fn input_gradient(g: &Geometry, weight: &[f32], gradient: &[f32], x: &mut [MaybeUninit<f32>]) {
    let Sliding { stride, padding, .. } = g.sliding;
    let [top, left] = g.kernel.map(|kernel| (kernel - 1) / stride);
    let [last_y, last_x] = g.size.map(|size| (size - 1 + padding) / stride);
    let channels = part(g.outputs, g.kernel.iter().map(|kernel| kernel.div_ceil(stride)).product());
    let planes = Planes { channels, height: last_y + top + 1, width: last_x + left + 1, top, left };
    let weights = Lanes::new(g.inputs, g.taps(), g.outputs * g.taps());
    let mut gather = Gather::new(g, planes, g.size[0] * g.size[1], weights, weight);
    for phase in grid([stride, stride]) {
        let here = |y: usize, x: usize| (y % stride, x % stride) == phase;
        let pixels = grid(g.size).filter(|(y, x)| here(y + padding, x + padding));
        let place = |y: usize, x: usize| (y * planes.width + x) * planes.channels;
        let pixels = pixels.map(|(y, x)| (place((y + padding) / stride, (x + padding) / stride), y * g.size[1] + x));
        let taps = grid(g.kernel).filter(|(y, x)| here(*y, *x));
        let taps = taps.map(|(y, x)| (place(top - y / stride, left - x / stride), y * g.kernel[1] + x));
        gather.add_phase(pixels.collect(), taps.collect());
    }
    let [height, width] = g.output();
    gather.run(Images { values: gradient, channels: g.outputs, height, width }, x);
}

/// All places of a grid, row by row.
fn grid([height, width]: [usize; 2]) -> impl Iterator<Item = (usize, usize)> {
    (0..height).flat_map(move |y| (0..width).map(move |x| (y, x)))
}

impl Gather {
    /// For targets of `pixels` pixels and a kernel `weights`, whose layout is `weight`.
    fn new(g: &Geometry, planes: Planes, pixels: usize, weight: Lanes, weights: &[f32]) -> Self {
        let images = images_at_once(g.batch, pixels, TASK_PIXELS);
        // One row more than there are pixels: rows that only fill up a tile go there.
        let target = Lanes::new(weight.channels, pixels, images * pixels + 1);
        let weights = weight.spread_kernel(weights);
        let is_single = images >= g.batch;
        Self { planes, taps: g.taps(), target, images, is_single, phases: Vec::new(), weight, weights }
    }

    /// Adds pixels, as (offset in a padded image, pixel of the target), and the taps that they see, as (offset in a padded
    /// image, tap of the kernel).
    fn add_phase(&mut self, pixels: Vec<(usize, usize)>, taps: Vec<(usize, usize)>) {
        let mut rows = Vec::with_capacity((self.images * pixels.len()).next_multiple_of(ROWS));
        for image in 0..self.images {
            let (from, to) = (image * self.planes.image(), image * self.target.pixels);
            rows.extend(pixels.iter().map(|pixel| Row { from: from + pixel.0, to: to + pixel.1 }));
        }
        rows.resize(rows.len().next_multiple_of(ROWS), Row { from: 0, to: self.target.rows - 1 });
        let mut steps = Vec::with_capacity(self.planes.channels * taps.len());
        for channel in 0..self.planes.channels {
            let panel = channel * self.taps;
            steps.extend(taps.iter().map(|tap| Step { source: channel + tap.0, panel: panel + tap.1 }));
        }
        self.phases.push(Phase { rows, steps, taps: taps.len() });
    }

    fn run(&self, source: Images, target: &mut [MaybeUninit<f32>]) {
        let image = self.target.channels * self.target.pixels;
        target.par_chunks_mut(self.images * image).enumerate().for_each(|(task, target)| {
            let first = task * self.images;
            self.images(source, first..first + target.len() / image, target);
        });
    }

    /// One task. Rows of images that the last task lacks read zeros and are dropped.
    fn images(&self, source: Images, images: Range<usize>, target: &mut [MaybeUninit<f32>]) {
        scratch::with([self.images * self.planes.image(), self.target.len()], |[planes, panels]| {
            for first in (0..source.channels).step_by(self.planes.channels) {
                let channels = first..source.channels.min(first + self.planes.channels);
                self.planes.fill(planes, source, images.clone(), channels.clone());
                for phase in &self.phases {
                    self.add(phase, channels.clone(), planes, panels);
                }
            }
            self.target.collect(panels, target);
        });
    }

    /// Adds what some source channels give to one phase.
    fn add(&self, phase: &Phase, channels: Range<usize>, planes: &[f32], panels: &mut [f32]) {
        let lanes = self.target.lanes;
        let steps = &phase.steps[..channels.len() * phase.taps];
        let weights = self.weights.par_chunks(self.weight.panel());
        let panels = weights.zip(panels.par_chunks_mut(self.target.panel()));
        // Where small maps leave a single task, its panels are what there is to share.
        panels.with_min_len(if self.is_single { 1 } else { usize::MAX }).for_each(|(weights, panel)| {
            let weights = &weights[channels.start * self.taps * lanes..];
            tile::multiply(&phase.rows, steps, planes, weights, lanes, panel);
        });
    }
}
