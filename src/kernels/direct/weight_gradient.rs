//! Weight gradient: `weight[o, i, tap] = sum over images and pixels of x[n, i, pixel + tap] * gradient[n, o, pixel]`.
//!
//! Rows are (input channel, tap), lanes are output channels, and the sum runs over pixels. A task is a part of the
//! input channels; if these are few, the batch is split too and the partial sums are added in order.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::geometry::{Geometry, images_at_once, part};
use super::lanes::Lanes;
use super::planes::{Images, Planes};
use super::tile::{Row, Step, Tiles};
use crate::activation::Activation;
use crate::pieces::on_pieces;
use crate::vector::scratch::{self, Kind};
use crate::vector::transpose;

/// Most input channels of a task: for kernels of many taps, and divided by the taps for kernels of few.
const TASK_CHANNELS: [usize; 2] = [16, 64];
/// Minimum of tasks, if the batch can be split that far.
const TASKS: usize = 16;
/// Minimum of pixels that one tile sums, if the batch has them.
const ENOUGH_PIXELS: usize = 128;

/// Output channels that are copied from lanes to the weight's layout at once; divides the lanes of a panel.
const TOGETHER: usize = 16;

struct WeightGradient<'a, T> {
    g: &'a Geometry,
    x: Images<'a, T>,
    planes: Planes,
    /// Images that are padded together.
    images: usize,
    /// Kernel taps of the channels of a task.
    rows: Vec<Row>,
    /// Output pixels of the images that are padded together.
    steps: Vec<Step>,
    gradient: &'a [T],
    /// The gradient of some images with channels as lanes, `[panels, pixels, lanes]`.
    group: Lanes,
    sums: Lanes,
}

/// Writes the gradient of the weight, `[outputs, inputs, kernel]`, into `weight`.
pub(crate) fn weight_gradient<T: Activation>(g: &Geometry, x: &[T], gradient: &[T], weight: &mut [MaybeUninit<f32>]) {
    let work = WeightGradient::new(g, x, gradient);
    let (parts, groups) = (g.inputs.div_ceil(work.planes.channels), g.batch.div_ceil(work.images));
    let cut = groups.div_ceil(TASKS.div_ceil(parts));
    let cuts = groups.div_ceil(cut);
    // If there are several parts, several tasks read the gradient of an image.
    let packed = if parts > 1 { groups * work.group.len() } else { 0 };
    scratch::with(Kind::Shared, [packed, parts * cuts * work.sums.len()], |[packed, sums]| {
        let pieces = packed.chunks_mut(work.group.len()).enumerate();
        on_pieces(pieces, g.parallel_for, |(group, to)| work.pack(*group, to));
        on_pieces(sums.chunks_mut(work.sums.len()).enumerate(), g.parallel_for, |(task, sums)| {
            let first = *task % cuts * cut;
            work.sum(*task / cuts, first..groups.min(first + cut), packed, sums);
        });
        on_pieces(sums.chunks_mut(cuts * work.sums.len()), g.parallel_for, |part| {
            let (total, rest) = part.split_at_mut(work.sums.len());
            let each = rest.chunks(total.len());
            each.for_each(|more| total.iter_mut().zip(more).for_each(|(total, more)| *total += more));
        });
        on_pieces(weight.chunks_mut(TOGETHER * g.inputs * g.taps()).enumerate(), g.parallel_for, |(i, weight)| {
            for (part, sums) in sums.chunks(cuts * work.sums.len()).enumerate() {
                work.collect(part, *i * TOGETHER, sums, weight);
            }
        });
    });
}

impl<'a, T: Activation> WeightGradient<'a, T> {
    fn new(g: &'a Geometry, x: &'a [T], gradient: &'a [T]) -> Self {
        // Every task reads the whole gradient, so a task should have many rows.
        let parts = g.inputs.div_ceil((TASK_CHANNELS[1] / g.taps()).max(TASK_CHANNELS[0]));
        let padding = g.padding;
        // Of the pixels between those that a kernel of one pixel meets none is copied.
        let is_pixel = g.kernel == [1, 1] && padding == 0;
        let every = if is_pixel { g.stride } else { 1 };
        let [height, width] = if is_pixel { g.output() } else { g.size.map(|size| size + 2 * padding) };
        let planes = Planes { channels: g.inputs.div_ceil(parts), height, width, padding, every };
        let images = images_at_once(g.batch, g.pixels(), ENOUGH_PIXELS);
        let group = Lanes::new(g.outputs, g.pixels(), images * g.pixels());
        let (rows, steps) = (rows(g, &planes, group.lanes), steps(g, &planes, images));
        let sums = Lanes::new(g.outputs, g.pixels(), rows.len());
        let x = Images { values: x, channels: g.inputs, height: g.size[0], width: g.size[1] };
        Self { g, x, planes, images, rows, steps, gradient, group, sums }
    }

    fn images(&self, group: usize) -> Range<usize> {
        group * self.images..self.g.batch.min((group + 1) * self.images)
    }

    fn pack(&self, group: usize, to: &mut [f32]) {
        let (images, image) = (self.images(group), self.g.outputs * self.g.pixels());
        self.group.pack(&self.gradient[images.start * image..images.end * image], to);
    }

    /// Writes the products of some groups of images, for one part of the input channels, to `sums`. The gradient is
    /// `packed`, or empty.
    fn sum(&self, part_number: usize, groups: Range<usize>, packed: &[f32], sums: &mut [f32]) {
        let first = part_number * self.planes.channels;
        let channels = first..self.g.inputs.min(first + self.planes.channels);
        let own = if packed.is_empty() { self.group.len() } else { 0 };
        scratch::with(Kind::Own, [own, self.images * self.planes.image()], |[own, planes]| {
            if self.planes.padding > 0 {
                planes.fill(0.0);
            }
            for group in groups.clone() {
                let images = self.images(group);
                let steps = &self.steps[..images.len() * self.g.pixels()];
                self.planes.fill(planes, self.x, images, channels.clone());
                let gradient = if packed.is_empty() {
                    self.pack(group, own);
                    &*own
                } else {
                    &packed[group * self.group.len()..][..self.group.len()]
                };
                self.add(steps, gradient, planes, sums, group == groups.start);
            }
        });
    }

    /// Adds the product of some images to `sums`, or overwrites them if `fresh`.
    fn add(&self, steps: &[Step], gradient: &[f32], planes: &[f32], sums: &mut [f32], fresh: bool) {
        let (lanes, rows) = (self.group.lanes, &self.rows[..]);
        for (i, steps) in steps.chunks(part(self.steps.len(), 1)).enumerate() {
            for (panel, sums) in gradient.chunks(self.group.panel()).zip(sums.chunks_mut(self.sums.panel())) {
                assert!(rows.len() * lanes <= sums.len(), "every row has its sums");
                let (source, out, fresh) = (planes, sums.as_mut_ptr(), fresh && i == 0);
                let tiles = Tiles { rows, steps, source, panel, lanes, filled: lanes, out, ahead: 0, fresh };
                // SAFETY: rows write within `sums`, to which no other reference exists.
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
    let stride = g.stride / planes.every;
    let pixel = |pixel: usize| (pixel / width * planes.width + pixel % width) * stride * planes.channels;
    let source = |step: usize| step / g.pixels() * planes.image() + pixel(step % g.pixels());
    (0..images * g.pixels()).map(|step| Step { source: source(step), panel: step }).collect()
}
