//! Weight gradient: `weight[o, i, tap] = sum over images and pixels of x[n, i, pixel + tap] * gradient[n, o, pixel]`.
//!
//! Rows are (input channel, tap), lanes are output channels, and the sum runs over pixels. A task is a part of the
//! input channels; if these are few, the batch is split too and the partial sums are added in order.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::geometry::{Geometry, images_at_once, part};
use super::lanes::Lanes;
use super::planes::{Images, Planes};
use super::scratch;
use super::tile::{Row, Step, Tiles};
use crate::ops::pieces::on_pieces;
use crate::ops::vector::transpose;

/// Most input channels of a task: for kernels of many taps, and divided by the taps for kernels of few.
const TASK_CHANNELS: [usize; 2] = [16, 64];
/// Minimum of tasks, if the batch can be split that far.
const TASKS: usize = 16;
/// Minimum of pixels that one tile sums, if the batch has them.
const ENOUGH_PIXELS: usize = 128;

/// Output channels that are copied from lanes to the weight's layout at once; divides the lanes of a panel.
const TOGETHER: usize = 16;

struct WeightGradient<'a> {
    g: &'a Geometry,
    x: Images<'a>,
    planes: Planes,
    /// Images that are padded together.
    images: usize,
    /// Kernel taps of the channels of a task, in whole tiles.
    rows: Vec<Row>,
    /// Output pixels of the images that are padded together.
    steps: Vec<Step>,
    gradient: &'a [f32],
    /// The gradient with channels as lanes, `[groups of images][panels, pixels, lanes]`, if several tasks read it.
    packed: Vec<f32>,
    group: Lanes,
    sums: Lanes,
}

/// Writes the gradient of the weight, `[outputs, inputs, kernel]`, into `weight`.
pub(in crate::ops) fn weight_gradient(g: &Geometry, x: &[f32], gradient: &[f32], weight: &mut [MaybeUninit<f32>]) {
    let work = WeightGradient::new(g, x, gradient);
    let (parts, groups) = (g.inputs.div_ceil(work.planes.channels), g.batch.div_ceil(work.images));
    let cut = groups.div_ceil(TASKS.div_ceil(parts));
    let cuts = groups.div_ceil(cut);
    let mut sums = vec![0.0; parts * cuts * work.sums.len()];
    on_pieces(sums.chunks_mut(work.sums.len()).enumerate(), g.parallel_for, |(task, sums)| {
        let first = *task % cuts * cut;
        work.add(*task / cuts, first..groups.min(first + cut), sums);
    });
    on_pieces(sums.chunks_mut(cuts * work.sums.len()), g.parallel_for, |part| {
        let (total, rest) = part.split_at_mut(work.sums.len());
        rest.chunks(total.len()).for_each(|more| total.iter_mut().zip(more).for_each(|(total, more)| *total += more));
    });
    on_pieces(weight.chunks_mut(TOGETHER * g.inputs * g.taps()).enumerate(), g.parallel_for, |(i, weight)| {
        for (part, sums) in sums.chunks(cuts * work.sums.len()).enumerate() {
            work.collect(part, *i * TOGETHER, sums, weight);
        }
    });
}

impl<'a> WeightGradient<'a> {
    fn new(g: &'a Geometry, x: &'a [f32], gradient: &'a [f32]) -> Self {
        // Every task reads the whole gradient, so a task should have many rows.
        let parts = g.inputs.div_ceil((TASK_CHANNELS[1] / g.taps()).max(TASK_CHANNELS[0]));
        let padding = g.sliding.padding;
        // Of the pixels between those that a kernel of one pixel meets none is copied.
        let is_pixel = g.kernel == [1, 1] && padding == 0;
        let every = if is_pixel { g.sliding.stride } else { 1 };
        let [height, width] = if is_pixel { g.output() } else { g.size.map(|size| size + 2 * padding) };
        let planes = Planes { channels: g.inputs.div_ceil(parts), height, width, padding, every };
        let images = images_at_once(g.batch, g.pixels(), ENOUGH_PIXELS);
        let group = Lanes::new(g.outputs, g.pixels(), images * g.pixels());
        let (rows, steps) = (rows(g, &planes, group.lanes), steps(g, &planes, images));
        let sums = Lanes::new(g.outputs, g.pixels(), rows.len());
        let groups = if parts > 1 { g.batch.div_ceil(images) } else { 0 };
        let mut packed = vec![0.0; groups * group.len()];
        let pieces = packed.chunks_mut(group.len()).zip(gradient.chunks(images * g.outputs * g.pixels()));
        on_pieces(pieces, g.parallel_for, |(to, from)| group.pack(from, to));
        let x = Images { values: x, channels: g.inputs, height: g.size[0], width: g.size[1] };
        Self { g, x, planes, images, rows, steps, gradient, packed, group, sums }
    }

    /// Adds the products of some groups of images, for one part of the input channels, to `sums`.
    fn add(&self, part_number: usize, groups: Range<usize>, sums: &mut [f32]) {
        let first = part_number * self.planes.channels;
        let channels = first..self.g.inputs.min(first + self.planes.channels);
        let own = if self.packed.is_empty() { self.group.len() } else { 0 };
        scratch::with(own + self.images * self.planes.image(), |memory| {
            let (own, planes) = memory.split_at_mut(own);
            planes.fill(0.0);
            for group in groups {
                let images = group * self.images..self.g.batch.min((group + 1) * self.images);
                self.planes.fill(planes, self.x, images.clone(), channels.clone());
                let pixels = images.start * self.g.pixels()..images.end * self.g.pixels();
                let steps = &self.steps[..pixels.len()];
                if self.packed.is_empty() {
                    self.group.pack(&self.gradient[pixels.start * self.g.outputs..pixels.end * self.g.outputs], own);
                    self.add_group(steps, own, planes, sums);
                } else {
                    let packed = &self.packed[group * self.group.len()..][..self.group.len()];
                    self.add_group(steps, packed, planes, sums);
                }
            }
        });
    }

    fn add_group(&self, steps: &[Step], packed: &[f32], planes: &[f32], sums: &mut [f32]) {
        let lanes = self.group.lanes;
        let depth = part(self.steps.len(), 1);
        for steps in steps.chunks(depth) {
            for (packed, sums) in packed.chunks(self.group.panel()).zip(sums.chunks_mut(self.sums.panel())) {
                let (rows, source, out) = (&self.rows[..], planes, sums.as_mut_ptr());
                assert!(rows.len() * lanes <= sums.len(), "every row has its sums");
                let tiles =
                    Tiles { rows, steps, source, panel: packed, lanes, filled: lanes, ahead: 0, out, fresh: false };
                // SAFETY: rows write within `sums`, which nobody else holds.
                unsafe { tiles.run() };
            }
        }
    }

    /// Writes the sums of one part of the input channels to the weights of the outputs from `first` on.
    fn collect(&self, part: usize, first: usize, sums: &[f32], weight: &mut [MaybeUninit<f32>]) {
        let (whole, taps) = (self.g.inputs * self.g.taps(), self.planes.channels * self.g.taps());
        let from = &sums[first / self.sums.lanes * self.sums.panel() + first % self.sums.lanes..];
        let rows = taps.min(whole - part * taps);
        let outputs = weight.len() / whole;
        transpose(from, self.sums.lanes, &mut weight[part * taps..], whole, [rows, outputs]);
    }
}

/// The first pixel of each (channel, tap), ordered by tap, then by channel, as in memory.
fn rows(g: &Geometry, planes: &Planes, lanes: usize) -> Vec<Row> {
    let (taps, [_, width]) = (g.taps(), g.kernel);
    let row = |tap: usize, channel: usize| Row {
        from: channel + (tap / width * planes.width + tap % width) * planes.channels,
        to: (channel * taps + tap) * lanes,
    };
    (0..taps).flat_map(|tap| (0..planes.channels).map(move |c| row(tap, c))).collect()
}

/// The first source pixel of each output pixel of some images.
fn steps(g: &Geometry, planes: &Planes, images: usize) -> Vec<Step> {
    let [_, width] = g.output();
    let stride = g.sliding.stride / planes.every;
    let pixel = |pixel: usize| (pixel / width * planes.width + pixel % width) * stride * planes.channels;
    let source = |step: usize| step / g.pixels() * planes.image() + pixel(step % g.pixels());
    (0..images * g.pixels()).map(|step| Step { source: source(step), panel: step }).collect()
}
