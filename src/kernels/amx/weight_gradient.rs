//! Weight gradient: blocks of 32 input channels times 32 output channels, summed over places of the output.
//!
//! The input is copied channel by channel, `[planes][rows][inputs][images * pitch]`, so that a kernel tap is a distance
//! between left factors; the gradient of the output lies in pairs of places, with zeros where a row is longer than the
//! image. Some images are copied at a time. The sums of few channels are split into parts of the places, which are
//! added in order; all splits follow from the sizes.

use std::mem::MaybeUninit;
use std::ops::Range;

use half::bf16;

use super::axis::Axis;
use super::block::{Block, DEPTH, SIDE};
use super::copy::{Rows, Spread, halves, pair_places, turn};
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
    /// Height and width.
    axes: [Axis; 2],
    x: Rows<'a>,
    gradient: Rows<'a>,
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
    let Geometry { batch, inputs, outputs, size: [height, width], parallel_for, .. } = *g;
    let (axes, taps) = ([0, 1].map(|axis| Axis::forward(g, axis)), g.taps());
    let size = size_of::<bf16>();
    let step = |i: usize| [i * DEPTH * size, i * DEPTH * SIDE * size].map(|bytes| bytes as isize);
    let steps = (0..STRETCH[usize::from(taps == 1)] / DEPTH).map(step).collect();
    let x = Rows { values: x, channels: inputs, height, width };
    let [height, width] = g.output();
    let gradient = Rows { values: gradient, channels: outputs, height, width };
    let work = WeightGradient { unit, g, axes, x, gradient, steps };
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
        let line = (images.len() * self.axes[1].pitch).next_multiple_of(DEPTH);
        Round { work: self, images, line, channel: ((line / DEPTH + 1) | 1) * DEPTH }
    }
}

impl Round<'_> {
    /// Values of the copies of input and gradient.
    fn lengths(&self) -> [usize; 2] {
        let WeightGradient { g, axes: [rows, columns], gradient, .. } = self.work;
        let lines = rows.planes.len() * columns.planes.len() * rows.places;
        [lines * g.inputs * self.channel, gradient.height * g.outputs * self.line]
    }

    fn stretches(&self) -> usize {
        self.work.gradient.height * self.line.div_ceil(self.work.steps.len() * DEPTH)
    }

    fn copy(&self, left: &mut [bf16], right: &mut [bf16]) {
        let WeightGradient { g, axes: [rows, columns], x, gradient, .. } = self.work;
        let [left_length, right_length] = self.lengths();
        let lines = left[..left_length].chunks_mut(g.inputs * self.channel).enumerate();
        on_pieces(lines, g.parallel_for, |(number, to)| {
            let (plane, place) = (*number / rows.places, *number % rows.places);
            let row = rows.coordinate(plane / columns.planes.len(), place);
            let spread = Spread::of(columns, plane % columns.planes.len());
            scratch::with(Kind::Own, [self.line * g.inputs / 2], |[line]| {
                let line = halves(line);
                x.of(&self.images).copy(row, spread, line);
                turn(line, g.inputs, to, self.channel);
            });
        });
        let lines = right[..right_length].chunks_mut(g.outputs * self.line).enumerate();
        on_pieces(lines, g.parallel_for, |(row, to)| {
            let spread = Spread { first: 0, every: 1, margin: 0, pitch: columns.pitch };
            scratch::with(Kind::Own, [self.line * g.outputs / 2], |[line]| {
                let line = halves(line);
                gradient.of(&self.images).copy(Some(*row), spread, line);
                pair_places(line, g.outputs, to);
            });
        });
    }

    /// Adds the products of a part of the stretches to the sums `[32 inputs][taps][32 outputs]` of a block of channels,
    /// which begin with the first image.
    fn add(&self, [panel, part]: [usize; 2], [cut, cuts]: [usize; 2], [left, right]: [&[bf16]; 2], sums: &mut [f32]) {
        let WeightGradient { unit, g, axes: [rows, columns], steps, .. } = self.work;
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
                    let plane = row.plane * columns.planes.len() + column.plane;
                    let line = plane * rows.places + place.wrapping_add_signed(row.shift);
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
