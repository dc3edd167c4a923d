//! Copies of activations and kernels in the layouts that tiles read.

use std::ops::Range;

use half::bf16;

use super::axis::{Axis, Tap};
use super::block::{DEPTH, SIDE};
use crate::direct::Lanes;
use crate::pieces::{ParallelFor, on_pieces};
use crate::vector::scratch::{self, Kind};
use crate::vector::{LANES, Routine, Set, Vector, bf16_of, load, turned, vectorized};

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
    let panel = lanes.panel();
    on_pieces(to.chunks_mut(panel).enumerate(), parallel_for, |(number, to)| {
        // An input gradient's channels lie next to each other but for the taps.
        if lanes.pixels == taps {
            let steps = [lanes.channels * taps, 1, taps];
            return vectorized(pair_kernels, (&weights[*number * SIDE * taps..], taps, steps, &mut **to));
        }
        scratch::with(Kind::Own, [panel], |[rows]| {
            lanes.pack_panel(*number, weights, rows);
            vectorized(pair_kernels, (&*rows, taps, [taps * SIDE, SIDE, 1], &mut **to));
        });
    });
}

/// Kernels are values `steps` apart: from one source channel, tap and target channel to the next.
#[inline(always)]
fn pair_kernels((kernels, taps, steps, to): (&[f32], usize, [usize; 3], &mut [bf16])) {
    let [source, tap, target] = steps;
    // Compiled for adjacent channels and for any others.
    match target {
        1 => pair_kernels_by(kernels, taps, [source, tap, 1], to),
        _ => pair_kernels_by(kernels, taps, steps, to),
    }
}

#[inline(always)]
fn pair_kernels_by(kernels: &[f32], taps: usize, [source, tap, target]: [usize; 3], to: &mut [bf16]) {
    let of_tap = to.len() / taps;
    for pair in 0..of_tap / (2 * SIDE) {
        for number in 0..taps {
            let first = [0, 1].map(|odd| (2 * pair + odd) * source + number * tap);
            let [one, other] = first.map(|first| &kernels[first..][..(SIDE - 1) * target + 1]);
            let to = &mut to[number * of_tap + pair * 2 * SIDE..][..2 * SIDE];
            for (i, to) in to.chunks_exact_mut(2).enumerate() {
                to[0] = bf16_of(one[i * target]);
                to[1] = bf16_of(other[i * target]);
            }
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
