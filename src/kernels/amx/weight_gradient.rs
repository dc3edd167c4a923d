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
/// Steps whose factors stay in a cache while all taps use them, and steps if there is one tap.
const STRETCH: [usize; 2] = [16, 64];

struct WeightGradient<'a> {
    unit: MatrixUnit,
    g: &'a Geometry,
    x: Source<'a>,
    gradient: Source<'a>,
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
    /// Where the factors of each step lie, row by row of the gradient, in bytes behind those of a tap and of a panel.
    steps: Vec<[isize; 2]>,
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
    let x = Source { values: x, channels: inputs, axes: &axes };
    let gradient = Source { values: gradient, channels: outputs, axes: &targets };
    let work = WeightGradient { unit, g, x, gradient };
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
        let Self { g, x, gradient, .. } = self;
        let of_row = (images.len() * x.axes[1].pitch).div_ceil(DEPTH);
        let (line, channel) = (of_row * DEPTH, ((of_row + 1) | 1) * DEPTH);
        let step = |row: usize, i: usize| {
            let [left, right] = [row * g.inputs * channel, row * g.outputs * line];
            [left + i * DEPTH, right + i * DEPTH * SIDE].map(|values| (values * size_of::<bf16>()) as isize)
        };
        let steps = (0..gradient.lines()).flat_map(|row| (0..of_row).map(move |i| step(row, i))).collect();
        Round { work: self, images, line, channel, steps }
    }
}

impl Round<'_> {
    /// Values of the copies of input and gradient.
    fn lengths(&self) -> [usize; 2] {
        let WeightGradient { x, gradient, .. } = self.work;
        [x.lines() * x.channels * self.channel, gradient.lines() * gradient.channels * self.line]
    }

    fn stretches(&self) -> usize {
        self.steps.len().div_ceil(self.stretch())
    }

    fn stretch(&self) -> usize {
        STRETCH[usize::from(self.work.g.taps() == 1)]
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
        let WeightGradient { unit, g, x, .. } = self.work;
        let [rows, columns] = x.axes;
        let (tiles, taps, of_row) = (unit.tiles(), g.taps(), self.line / DEPTH);
        let size = size_of::<bf16>();
        let right = &right[panel * SIDE * self.line..];
        let mut begun = vec![self.images.start > 0; taps];
        for stretch in self.stretches() * cut / cuts..self.stretches() * (cut + 1) / cuts {
            let (first, end) = (stretch * self.stretch(), (stretch + 1) * self.stretch());
            for row in &rows.phases[0] {
                // Those of the rows of the gradient that meet a row of the images.
                let met = rows.met(0, row);
                let some = first.max(met.start * of_row)..end.min(met.end * of_row);
                if some.is_empty() {
                    continue;
                }
                let steps = &self.steps[some];
                let [start, end] = [steps[0], steps[steps.len() - 1]];
                for column in &columns.phases[0] {
                    let line = (x.plane([row, column]) as isize + row.shift) * g.inputs as isize;
                    let from = (line + (part * SIDE) as isize) * self.channel as isize;
                    let from = (from + columns.margin as isize + column.shift) * size as isize;
                    let [left_end, right_end] = [(SIDE - 1) * self.channel + DEPTH, SIDE * DEPTH].map(|it| it * size);
                    let ends = [(from + end[0]) as usize + left_end, end[1] as usize + right_end];
                    let are_within = ends[0] <= size_of_val(left) && ends[1] <= size_of_val(right);
                    assert!(from + start[0] >= 0 && are_within, "factors lie in the copies");
                    let tap = row.number * g.kernel[1] + column.number;
                    let block = Block {
                        left: left.as_ptr().wrapping_byte_offset(from),
                        left_row: self.channel,
                        right: right.as_ptr(),
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
