//! Forward pass and input gradient: blocks of 32 places of the target times 32 of its channels.
//!
//! The source is copied to `[planes][rows][images][pitch][channels]` (`axis.rs`); what a kernel of one pixel meets is
//! read where it lies. A block runs on over ends of rows and images; the places between them, whose sums mean nothing,
//! are not written. Every sum of a target pixel has one order, by kernel tap and then by channel, whatever the batch.

use std::ops::Range;

use half::bf16;

use super::axis::{Axis, Tap};
use super::block::{Block, DEPTH, SIDE};
use super::copy::{Source, halves, pack_kernels};
use super::unit::MatrixUnit;
use crate::activation::Activation;
use crate::direct::{Geometry, Lanes};
use crate::epilogue::Epilogue;
use crate::pieces::on_pieces;
use crate::vector::scratch::{self, Kind};
use crate::vector::{LANES, Routine, Set, Shared, Vector};

/// Most values of a group of images, of source or target, but at least one image: a part of the second cache.
const GROUP: usize = 1 << 18;
/// Fewer groups are copied beforehand, and each panel of target channels is a task of its own.
const TASKS: usize = 8;

/// A pass over a batch.
struct Gather<'a> {
    unit: MatrixUnit,
    g: Geometry,
    source: Source<'a>,
    /// Channels of the target.
    channels: usize,
    /// Images of a group.
    images: usize,
    kernels: &'a [bf16],
    epilogue: Option<Epilogue<'a, bf16>>,
    target: Shared<bf16>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Direction {
    Forward,
    InputGradient,
}

/// Writes the target. The unit takes the geometry, and all values are as many as it says.
pub(super) fn run(
    unit: MatrixUnit,
    direction: Direction,
    g: &Geometry,
    source: &[bf16],
    weight: &[f32],
    epilogue: Option<Epilogue<bf16>>,
    target: Shared<bf16>,
) {
    // Where each pixel meets itself alone, pixels are images.
    let pixels = if is_pixelwise(g) { g.pixels() } else { 1 };
    let g = Geometry { batch: g.batch * pixels, size: if pixels > 1 { [1, 1] } else { g.size }, ..*g };
    let depth = g.inputs * g.taps();
    let (axis, lanes): (fn(&Geometry, usize) -> Axis, _) = match direction {
        Direction::Forward => (Axis::forward, Lanes::new(g.outputs, depth, depth)),
        Direction::InputGradient => (Axis::input_gradient, Lanes::new(g.inputs, g.taps(), g.outputs * g.taps())),
    };
    let (depth, channels) = (lanes.rows, lanes.channels);
    let axes = [0, 1].map(|number| axis(&g, number));
    let source = Source { values: source, channels: depth / g.taps(), axes: &axes };
    let mut gather = Gather { unit, g, source, channels, images: 1, kernels: &[], epilogue, target };
    let (read, written) = (gather.copied(1) - gather.copied(0), channels * axes[0].target * axes[1].target);
    gather.images = (GROUP / read.max(written)).clamp(1, g.batch);
    let copied = if gather.groups() >= TASKS || gather.is_in_place() { 0 } else { gather.groups() };
    let lengths = [depth * channels, copied * gather.copied(gather.images)];
    scratch::with(Kind::Shared, lengths.map(|length| length.div_ceil(2)), |memory| {
        let [kernels, copies] = memory.map(halves);
        pack_kernels(lanes, g.taps(), weight, g.parallel_for, kernels);
        Gather { kernels, ..gather }.run(copies);
    });
}

/// Whether each pixel meets one pixel, its own.
fn is_pixelwise(g: &Geometry) -> bool {
    g.kernel == [1, 1] && g.stride == 1 && g.padding == 0
}

impl Gather<'_> {
    fn groups(&self) -> usize {
        self.g.batch.div_ceil(self.images)
    }

    fn group(&self, number: usize) -> Range<usize> {
        number * self.images..self.g.batch.min((number + 1) * self.images)
    }

    /// Blocks read whole tiles.
    fn is_in_place(&self) -> bool {
        is_pixelwise(&self.g) && self.g.batch >= SIDE
    }

    /// Values of the copy of some images; the last block reads beyond the last place.
    fn copied(&self, images: usize) -> usize {
        let pitch = self.source.axes[1].pitch;
        (self.source.lines() * images * pitch + SIDE + 2 * pitch) * self.source.channels
    }

    fn run(&self, copies: &mut [bf16]) {
        let (parallel_for, panels) = (self.g.parallel_for, self.channels / SIDE);
        let (copied, groups) = (self.copied(self.images), self.groups());
        if groups >= TASKS {
            return parallel_for(groups, &|group| {
                let images = self.group(group);
                if self.is_in_place() {
                    return self.sum(self.source.values, images.start, images, 0..panels);
                }
                scratch::with(Kind::Own, [copied.div_ceil(2)], |[memory]| {
                    let copy = halves(memory);
                    self.copy(images.clone(), copy);
                    self.sum(copy, 0, images, 0..panels);
                });
            });
        }
        let pieces = copies.chunks_mut(copied).enumerate();
        on_pieces(pieces, parallel_for, |(group, to)| self.copy(self.group(*group), to));
        parallel_for(groups * panels, &|task| {
            let (images, number) = (self.group(task / panels), task / panels);
            let (source, start) = match copies.chunks(copied).nth(number) {
                Some(copy) => (copy, 0),
                None => (self.source.values, images.start),
            };
            self.sum(source, start, images, task % panels..task % panels + 1);
        });
    }

    fn copy(&self, images: Range<usize>, to: &mut [bf16]) {
        let line = images.len() * self.source.axes[1].pitch * self.source.channels;
        let (lines, behind) = to.split_at_mut(self.source.lines() * line);
        let lines = lines.chunks_mut(line).enumerate();
        lines.for_each(|(number, to)| self.source.copy(&images, number, to));
        behind.fill(bf16::ZERO);
    }

    /// Writes some panels of the target of a group of images, whose places lie in `source` from `start` on.
    fn sum(&self, source: &[bf16], start: usize, images: Range<usize>, panels: Range<usize>) {
        let Source { channels, axes: [rows, columns], .. } = self.source;
        let line = images.len() * columns.pitch;
        let tiles = self.unit.tiles();
        let mut sums = Sums([0.0; SIDE * SIDE]);
        let mut steps = Vec::new();
        for panel in panels {
            for (y, x) in (0..rows.phases.len()).flat_map(|y| (0..columns.phases.len()).map(move |x| (y, x))) {
                let count = columns.count(x);
                for (places, taps) in rows.runs(y) {
                    let taps = taps.iter().flat_map(|row| columns.phases[x].iter().map(move |column| [row, column]));
                    steps.clear();
                    taps.for_each(|tap| self.push_steps(tap, line, panel, &mut steps));
                    let mut place = Place { row: places.start, image: 0, column: 0 };
                    let end = places.end * line;
                    for first in (places.start * line..end).step_by(SIDE) {
                        // What lies behind the last pixel is no copy: the last block begins earlier.
                        let reach = start + first + SIDE;
                        let back = if self.is_in_place() { reach.saturating_sub(self.g.batch) } else { 0 };
                        let block = Block {
                            left: source.as_ptr().wrapping_add((start + first - back) * channels),
                            left_row: channels,
                            right: self.kernels.as_ptr(),
                            steps: &steps,
                            sums: sums.0.as_mut_ptr(),
                            sums_row: SIDE,
                            fresh: true,
                        };
                        // SAFETY: the places of a run with their taps lie in the copy or, in place, in the batch, which
                        // begins at least `back` places before the last block.
                        unsafe { tiles.multiply(&block) };
                        let mut to = [None; SIDE];
                        for to in &mut to[back..(back + end - first).min(SIDE)] {
                            let is_there = place.column < count;
                            *to = is_there.then(|| self.target(&place, [y, x], images.start, panel));
                            place.advance([images.len(), columns.pitch]);
                        }
                        let channel = panel * SIDE;
                        let write = Write { sums: &sums, to, channel, epilogue: self.epilogue, target: self.target };
                        // SAFETY: `best` is a set of this processor, and each pixel's channels are written by one task.
                        unsafe { Set::best().run(&write) };
                    }
                }
            }
        }
    }

    /// The steps of one kernel tap, from a place of the first row on.
    fn push_steps(&self, [row, column]: [&Tap; 2], line: usize, panel: usize, steps: &mut Vec<[isize; 2]>) {
        let Source { channels, axes: [_, columns], .. } = self.source;
        let places = (self.source.plane([row, column]) as isize + row.shift) * line as isize + column.shift;
        let source = (places + columns.margin as isize) * channels as isize;
        let tap = row.number * self.g.kernel[1] + column.number;
        let kernel = (panel * self.g.taps() + tap) * channels * SIDE;
        let size = size_of::<bf16>() as isize;
        let step = |first: usize| [(source + first as isize) * size, (kernel + first * SIDE) as isize * size];
        steps.extend((0..channels).step_by(DEPTH).map(step));
    }

    /// The first value of a panel's channels in the target, at a place of a phase.
    fn target(&self, place: &Place, [y, x]: [usize; 2], first: usize, panel: usize) -> usize {
        let [rows, columns] = self.source.axes;
        let (row, column) = (y + place.row * rows.phases.len(), x + place.column * columns.phases.len());
        let pixel = ((first + place.image) * rows.target + row) * columns.target + column;
        pixel * self.channels + panel * SIDE
    }
}

/// A place of a phase of the target.
struct Place {
    row: usize,
    image: usize,
    column: usize,
}

impl Place {
    fn advance(&mut self, [images, pitch]: [usize; 2]) {
        self.column += 1;
        if self.column == pitch {
            (self.column, self.image) = (0, self.image + 1);
        }
        if self.image == images {
            (self.image, self.row) = (0, self.row + 1);
        }
    }
}

/// The sums of a block, `[places][channels]`.
#[repr(align(64))]
struct Sums([f32; SIDE * SIDE]);

/// Rounds sums to the target, and applies the epilogue to the rounded values.
struct Write<'a> {
    sums: &'a Sums,
    /// Where the channels of each place lie in the target.
    to: [Option<usize>; SIDE],
    channel: usize,
    epilogue: Option<Epilogue<'a, bf16>>,
    target: Shared<bf16>,
}

impl Routine for Write<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        for (sums, to) in self.sums.0.as_chunks::<SIDE>().0.iter().zip(self.to) {
            let Some(to) = to else { continue };
            for first in (0..SIDE).step_by(LANES) {
                let (at, channel) = (self.target.at(to + first), self.channel + first);
                // SAFETY: passed on to the caller; an array has the alignment of its values.
                unsafe {
                    V::load(sums.as_ptr().add(first)).store_bf16(at);
                    if let Some(epilogue) = &self.epilogue {
                        let values = at.cast::<[bf16; LANES]>();
                        let rounded = values.read().map(bf16::widened);
                        values.write(epilogue.channels(rounded, channel, to + first).map(bf16::of));
                    }
                }
            }
        }
    }
}
