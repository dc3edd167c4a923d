//! Copies of activations and kernels in the layouts that tiles read.

use std::ops::Range;

use half::bf16;

use super::axis::{Axis, Tap};
use super::block::{DEPTH, SIDE};
use crate::direct::Lanes;
use crate::pieces::{ParallelFor, on_pieces};
use crate::vector::scratch::{self, Kind};
use crate::vector::{LANES, Routine, Set, Shared, Vector, bf16_of, load, turned, vectorized};

/// Working memory as values of 16 bits: half as many f32 have room for them.
pub(super) fn halves(memory: &mut [f32]) -> &mut [bf16] {
    // SAFETY: two bf16 have the size of an f32 and need less alignment, and both are values for each pattern of bits.
    unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), 2 * memory.len()) }
}

/// Images `[batch, height, width, channels]`, which are copied in lines: rows of a plane of some images,
/// `[images][pitch][channels]`.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) values: &'a [bf16],
    pub(super) channels: usize,
    /// Height and width.
    pub(super) axes: &'a [Axis; 2],
}

impl Source<'_> {
    /// Lines of all planes.
    pub(super) fn lines(&self) -> usize {
        let [rows, columns] = self.axes;
        rows.planes.len() * columns.planes.len() * rows.places
    }

    /// The first line of the plane in which two taps lie.
    pub(super) fn plane(&self, [row, column]: [&Tap; 2]) -> usize {
        let [rows, columns] = self.axes;
        (row.plane * columns.planes.len() + column.plane) * rows.places
    }

    /// Copies a line, with zeros for what is not on the images and behind them.
    pub(super) fn copy(&self, images: &Range<usize>, line: usize, to: &mut [bf16]) {
        let ([rows, columns], channels) = (self.axes, self.channels);
        let (plane, place) = (line / rows.places, line % rows.places);
        let Some(row) = rows.coordinate(plane / columns.planes.len(), place) else { return to.fill(bf16::ZERO) };
        let (first, length) = (columns.planes[plane % columns.planes.len()], columns.source * channels);
        let places = columns.source.saturating_sub(first).div_ceil(columns.every);
        let (to, behind) = to.split_at_mut(images.len() * columns.pitch * channels);
        behind.fill(bf16::ZERO);
        for (image, to) in images.clone().zip(to.chunks_mut(columns.pitch * channels)) {
            let from = &self.values[(image * rows.source + row) * length..][..length];
            let (before, to) = to.split_at_mut(columns.margin * channels);
            let (to, behind) = to.split_at_mut(places * channels);
            before.fill(bf16::ZERO);
            behind.fill(bf16::ZERO);
            if columns.every == 1 {
                to.copy_from_slice(from);
                continue;
            }
            for (to, from) in to.chunks_mut(channels).zip(from.chunks(channels).skip(first).step_by(columns.every)) {
                to.copy_from_slice(from);
            }
        }
    }
}

/// Kernels in f32 to right factors, `[panels][taps][source channels / 2][32 target channels][2]`.
pub(super) fn pack_kernels(lanes: Lanes, taps: usize, weights: &[f32], parallel_for: ParallelFor, to: &mut [bf16]) {
    // An input gradient's target channels lie next to each other but for the taps.
    let [source, target] = if lanes.pixels == taps { [lanes.channels * taps, taps] } else { [taps, lanes.pixels] };
    on_pieces(to.chunks_mut(lanes.panel()).enumerate(), parallel_for, |(number, to)| {
        let kernels = &weights[*number * SIDE * target..];
        match [source, target] {
            [_, 1] => vectorized(pair_rows, (kernels, source, &mut **to)),
            [1, _] => scratch::with(Kind::Own, [lanes.panel()], |[rows]| {
                lanes.pack_panel(*number, weights, rows);
                vectorized(pair_rows, (&*rows, SIDE, &mut **to));
            }),
            steps => {
                let (pairs, to) = (to.len() / (taps * 2 * SIDE), Shared(to.as_mut_ptr()));
                // SAFETY: `best` is a set of this processor, and there is room for as many pairs.
                unsafe { Set::best().run(&PairKernels { kernels, taps, steps, pairs, to }) }
            }
        }
    });
}

/// Kernels of one pixel, whose source channels are `step` values apart.
#[inline(always)]
fn pair_rows((kernels, step, to): (&[f32], usize, &mut [bf16])) {
    for (pair, to) in to.chunks_exact_mut(2 * SIDE).enumerate() {
        let [one, other] = [0, 1].map(|odd| &kernels[(2 * pair + odd) * step..][..SIDE]);
        for (i, to) in to.chunks_exact_mut(2).enumerate() {
            to[0] = bf16_of(one[i]);
            to[1] = bf16_of(other[i]);
        }
    }
}

/// Kernels of several pixels, of one panel.
struct PairKernels<'a> {
    kernels: &'a [f32],
    taps: usize,
    /// From one source channel to the next, and from one target channel.
    steps: [usize; 2],
    pairs: usize,
    to: Shared<bf16>,
}

impl Routine for PairKernels<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        let Self { taps, steps: [source, target], pairs, .. } = *self;
        for pair in 0..pairs {
            for channel in (0..SIDE).step_by(LANES) {
                for first in (0..taps).step_by(LANES) {
                    // Pairs of source channels are lanes of 32 bits, which are only moved.
                    let mut rows = [[0_u32; LANES]; LANES];
                    for (i, row) in rows.iter_mut().enumerate() {
                        let from = 2 * pair * source + (channel + i) * target + first;
                        let (one, other) = (self.some(from), self.some(from + source));
                        for lane in 0..LANES {
                            let [one, other] =
                                [one[lane], other[lane]].map(|value| u32::from(bf16_of(value).to_bits()));
                            row[lane] = one | other << 16;
                        }
                    }
                    // SAFETY: passed on to the caller; the square has sixteen rows.
                    unsafe {
                        let taps_of = turned(load::<V>(rows.as_ptr().cast(), LANES));
                        for (i, lanes) in taps_of.into_iter().enumerate().take(taps - first) {
                            let at = ((first + i) * pairs + pair) * SIDE + channel;
                            lanes.store(self.to.at(2 * at).cast());
                        }
                    }
                }
            }
        }
    }
}

impl PairKernels<'_> {
    /// Sixteen values, with zeros behind the last kernel.
    #[inline(always)]
    fn some(&self, from: usize) -> [f32; LANES] {
        match self.kernels[from..].first_chunk() {
            Some(some) => *some,
            None => std::array::from_fn(|i| self.kernels.get(from + i).copied().unwrap_or(0.0)),
        }
    }
}

/// Places `[places][channels]` to right factors, `[channels / 32][places / 2][32][2]`.
pub(super) fn pair_places(from: &[bf16], channels: usize, to: &mut [bf16]) {
    vectorized(pairs_of_places, (from, channels, to));
}

#[inline(always)]
fn pairs_of_places((from, channels, to): (&[bf16], usize, &mut [bf16])) {
    let panel = from.len() / channels * SIDE;
    for (pair, places) in from.chunks_exact(2 * channels).enumerate() {
        let (one, other) = places.split_at(channels);
        for (number, to) in to.chunks_exact_mut(panel).enumerate() {
            let [one, other] = [one, other].map(|place| &place[number * SIDE..][..SIDE]);
            for (i, to) in to[pair * 2 * SIDE..][..2 * SIDE].chunks_exact_mut(2).enumerate() {
                to.copy_from_slice(&[one[i], other[i]]);
            }
        }
    }
}

/// Places `[places][channels]` to left factors, `[channels][step]`, with zeros behind the places.
pub(super) fn turn(from: &[bf16], channels: usize, to: &mut [bf16], step: usize) {
    let places = from.len() / channels;
    assert!(from.len().is_multiple_of(channels * DEPTH) && channels.is_multiple_of(LANES), "whole squares");
    assert!(places <= step && channels * step <= to.len(), "there is room for the channels");
    to.chunks_mut(step).for_each(|to| to[places..].fill(bf16::ZERO));
    // SAFETY: as asserted; `best` is a set of this processor.
    unsafe { Set::best().run(&Turn { from: from.as_ptr(), channels, places, to: to.as_mut_ptr(), step }) };
}

struct Turn {
    from: *const bf16,
    channels: usize,
    places: usize,
    to: *mut bf16,
    step: usize,
}

impl Routine for Turn {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        for place in (0..self.places).step_by(DEPTH) {
            for channel in (0..self.channels).step_by(LANES) {
                // Pairs of places are lanes of 32 bits, which are only moved.
                let mut pairs = [[0_u32; LANES]; LANES];
                for (i, pairs) in pairs.iter_mut().enumerate() {
                    // SAFETY: passed on to the caller.
                    let [one, other] = [0, 1].map(|odd| unsafe {
                        let from = self.from.add((place + 2 * i + odd) * self.channels + channel);
                        &*from.cast::<[bf16; LANES]>()
                    });
                    for (lane, pair) in pairs.iter_mut().enumerate() {
                        *pair = u32::from(one[lane].to_bits()) | u32::from(other[lane].to_bits()) << 16;
                    }
                }
                // SAFETY: as above; the square has sixteen rows.
                unsafe {
                    for (i, lanes) in turned(load::<V>(pairs.as_ptr().cast(), LANES)).into_iter().enumerate() {
                        lanes.store(self.to.add((channel + i) * self.step + place).cast());
                    }
                }
            }
        }
    }
}
