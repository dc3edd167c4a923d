//! Weight gradient: blocks of 32 input channels times 32 output channels, summed over places of the output.
//!
//! The input is copied channel by channel, `[planes][rows][inputs][images * pitch]`, so that a kernel tap is a distance
//! between left factors; the gradient of the output lies in pairs of places, with zeros where a row is longer than the
//! image. Some images are copied at a time. The sums of few channels are split into parts of the places, which are
//! added in order; all splits follow from the sizes.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice::ChunksMut;

use half::bf16;

use super::axis::Axis;
use super::block::{Block, DEPTH, SIDE};
use super::copy::{Source, halves, pair_places, turn};
use super::unit::MatrixUnit;
use crate::direct::Geometry;
use crate::pieces::on_pieces;
use crate::vector::scratch::{self, Kind};
use crate::vector::transpose;

/// Most values of either copy, but at least one image.
const COPIED: usize = 1 << 22;
/// Most images that are copied at once.
const IMAGES: usize = 32;
/// Minimum of tasks, if there are as many stretches of places.
const TASKS: usize = 16;
/// Places whose factors stay in the first cache while all taps use them, and places if there is one tap.
const STRETCH: [usize; 2] = [8 * DEPTH, 64 * DEPTH];

struct WeightGradient<'a> {
    unit: MatrixUnit,
    g: &'a Geometry,
    x: Source<'a>,
    gradient: Source<'a>,
    /// The steps of a stretch.
    steps: Vec<[isize; 2]>,
}

/// Some images that are copied at once.
struct Round<'a> {
    work: &'a WeightGradient<'a>,
    images: Range<usize>,
    /// Places of all images' rows, in whole steps.
    line: usize,
    /// Values from one input channel to the next: an odd number of cache lines, which fall into different sets of a
    /// cache, with zeros behind the places.
    channel: usize,
}

/// Writes the gradient of the weight. The unit takes the geometry, and the slices are as large as it says.
pub(super) fn weight_gradient(
    unit: MatrixUnit,
    g: &Geometry,
    x: &[bf16],
    gradient: &[bf16],
    weight: &mut [MaybeUninit<f32>],
) {
    let Geometry { batch, inputs, outputs, parallel_for, .. } = *g;
    let (axes, taps) = ([0, 1].map(|axis| Axis::forward(g, axis)), g.taps());
    let targets = [0, 1].map(|axis: usize| axes[axis].of_target());
    let size = size_of::<bf16>();
    let step = |i: usize| [i * DEPTH * size, i * DEPTH * SIDE * size].map(|bytes| bytes as isize);
    let steps = (0..STRETCH[usize::from(taps == 1)] / DEPTH).map(step).collect();
    let x = Source { values: x, channels: inputs, axes: &axes };
    let gradient = Source { values: gradient, channels: outputs, axes: &targets };
    let work = WeightGradient { unit, g, x, gradient, steps };
    let most = work.round(0..1).lengths().into_iter().max().unwrap_or(1);
    let images = (COPIED / most).clamp(1, IMAGES).min(batch);
    let (panels, parts) = (outputs / SIDE, inputs / SIDE);
    let [left, right] = work.round(0..images).lengths();
    let cuts = TASKS.div_ceil(panels * parts).min(work.round(0..images).stretches());
    let of_task = SIDE * taps * SIDE;
    let lengths = [left / 2, right / 2, panels * parts * cuts * of_task];
    scratch::with(Kind::Shared, lengths, |[left, right, sums]| {
        let (left, right) = (halves(left), halves(right));
        for first in (0..batch).step_by(images) {
            let round = work.round(first..batch.min(first + images));
            round.copy(left, right);
            on_pieces(sums.chunks_mut(of_task).enumerate(), parallel_for, |(task, sums)| {
                round.add([*task / cuts / parts, *task / cuts % parts], [*task % cuts, cuts], [left, right], sums);
            });
        }
        let panels = weight.chunks_mut(SIDE * inputs * taps).zip(sums.chunks_mut(parts * cuts * of_task));
        on_pieces(panels, parallel_for, |(weight, sums)| {
            for (part, sums) in sums.chunks_mut(cuts * of_task).enumerate() {
                let (total, rest) = sums.split_at_mut(of_task);
                let each = rest.chunks(of_task);
                each.for_each(|more| total.iter_mut().zip(more).for_each(|(total, more)| *total += more));
                transpose(total, SIDE, &mut weight[part * SIDE * taps..], inputs * taps, [SIDE * taps, SIDE]);
            }
        });
    });
}

impl WeightGradient<'_> {
    fn round(&self, images: Range<usize>) -> Round<'_> {
        let line = (images.len() * self.x.axes[1].pitch).next_multiple_of(DEPTH);
        Round { work: self, images, line, channel: ((line / DEPTH + 1) | 1) * DEPTH }
    }
}

impl Round<'_> {
    /// Values of the copies of input and gradient.
    fn lengths(&self) -> [usize; 2] {
        let WeightGradient { x, gradient, .. } = self.work;
        [x.lines() * x.channels * self.channel, gradient.lines() * gradient.channels * self.line]
    }

    fn stretches(&self) -> usize {
        self.work.gradient.lines() * self.line.div_ceil(self.work.steps.len() * DEPTH)
    }

    fn copy(&self, left: &mut [bf16], right: &mut [bf16]) {
        let WeightGradient { x, gradient, .. } = self.work;
        let [left_length, right_length] = self.lengths();
        let left = left[..left_length].chunks_mut(x.channels * self.channel);
        self.each_line(x, left, &|line, to| turn(line, x.channels, to, self.channel));
        let right = right[..right_length].chunks_mut(gradient.channels * self.line);
        self.each_line(gradient, right, &|line, to| pair_places(line, gradient.channels, to));
    }

    /// Copies each line, and `write`s it to where it belongs.
    fn each_line(&self, source: &Source, to: ChunksMut<bf16>, write: &(dyn Fn(&[bf16], &mut [bf16]) + Sync)) {
        on_pieces(to.enumerate(), self.work.g.parallel_for, |(number, to)| {
            scratch::with(Kind::Own, [self.line * source.channels / 2], |[line]| {
                let line = halves(line);
                source.copy(&self.images, *number, line);
                write(line, to);
            });
        });
    }

    /// Adds the products of a part of the stretches to the sums `[32 inputs][taps][32 outputs]` of a block of channels,
    /// which begin with the first image.
    fn add(&self, [panel, part]: [usize; 2], [cut, cuts]: [usize; 2], [left, right]: [&[bf16]; 2], sums: &mut [f32]) {
        let WeightGradient { unit, g, x, steps, .. } = self.work;
        let [rows, columns] = x.axes;
        let tiles = unit.tiles();
        let taps = g.taps();
        let mut begun = vec![self.images.start > 0; taps];
        let (stretches, of_line) = (self.stretches(), self.line.div_ceil(steps.len() * DEPTH));
        for stretch in stretches * cut / cuts..stretches * (cut + 1) / cuts {
            let (place, start) = (stretch / of_line, stretch % of_line * steps.len() * DEPTH);
            let steps = &steps[..steps.len().min((self.line - start) / DEPTH)];
            let with = (place * g.outputs + panel * SIDE) * self.line + start * SIDE;
            for row in rows.taps(0, place) {
                for column in &columns.phases[0] {
                    let line = x.plane([&row, column]) + place.wrapping_add_signed(row.shift);
                    let first = start + columns.margin.wrapping_add_signed(column.shift);
                    let from = (line * g.inputs + part * SIDE) * self.channel + first;
                    let end = (SIDE - 1) * self.channel + steps.len() * DEPTH;
                    assert!(from + end <= left.len() && with + steps.len() * DEPTH * SIDE <= right.len(), "in copies");
                    let tap = row.number * g.kernel[1] + column.number;
                    let block = Block {
                        left: left[from..].as_ptr(),
                        left_row: self.channel,
                        right: right[with..].as_ptr(),
                        steps,
                        sums: sums[tap * SIDE..].as_mut_ptr(),
                        sums_row: taps * SIDE,
                        fresh: !std::mem::replace(&mut begun[tap], true),
                    };
                    // SAFETY: the factors lie in the copies, as asserted, and the sums in `sums`.
                    unsafe { tiles.multiply(&block) };
                }
            }
        }
        for tap in (0..taps).filter(|tap| !begun[*tap]) {
            sums.chunks_mut(SIDE).skip(tap).step_by(taps).for_each(|sums| sums.fill(0.0));
        }
    }
}
