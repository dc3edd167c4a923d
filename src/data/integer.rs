//! Bicubic resizing with antialiasing, and the nearest pixel: the bytes of Pillow's `resize`, by its integers.

use std::ops::{Deref, Range};

use image::{ImageBuffer, Rgb};
use kiln_ops::images::CHANNELS;

use super::interpolation::Interpolation;
use super::resample::{ResizedCrop, Span};

/// Bits of a weight after the point.
const BITS: u32 = 22;

/// The weights of the input pixels that make up one of the output.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// Those of `outputs` when `span` becomes a line of `to` pixels.
fn taps(span: Span, to: u32, outputs: Range<u32>, interpolation: Interpolation) -> Vec<Taps> {
    let (start, ratio) = (f64::from(span.start), f64::from(span.length) / f64::from(to));
    if interpolation == Interpolation::Nearest {
        // Pillow adds up, so the last bits depend on the pixels before.
        let places = std::iter::successors(Some(start + ratio * 0.5), |at| Some(at + ratio));
        let first = |at: f64| (at as usize).min(span.pixels as usize - 1);
        let taken = places.take(outputs.end as usize).skip(outputs.start as usize);
        return taken.map(|at| Taps { first: first(at), weights: vec![1 << BITS] }).collect();
    }
    let scale = ratio.max(1.0);
    let of = |output: u32| {
        let centre = start + (f64::from(output) + 0.5) * ratio;
        // The conversions drop the fraction and saturate.
        let first = ((centre - 2.0 * scale + 0.5) as u32).min(span.pixels - 1);
        let end = ((centre + 2.0 * scale + 0.5) as u32).clamp(first + 1, span.pixels);
        let weights: Vec<f64> = (first..end).map(|at| cubic((f64::from(at) - centre + 0.5) * (1.0 / scale))).collect();
        let mut sum = 0.0;
        weights.iter().for_each(|weight| sum += weight);
        let fixed = |weight: f64| (weight / sum * f64::from(1 << BITS)).round() as i32;
        Taps { first: first as usize, weights: weights.into_iter().map(fixed).collect() }
    };
    outputs.map(of).collect()
}

/// The cubic filter with a = -0.5 (Keys, 1981).
fn cubic(at: f64) -> f64 {
    const A: f64 = -0.5;
    match at.abs() {
        at if at < 1.0 => ((A + 2.0) * at - (A + 3.0)) * at * at + 1.0,
        at if at < 2.0 => (((at - 5.0) * at + 8.0) * at - 4.0) * A,
        _ => 0.0,
    }
}

/// As [`resample`](super::resample::resample): first the columns of every row, rounded to bytes, then the rows.
pub(super) fn resample(
    image: &ImageBuffer<Rgb<u8>, impl Deref<Target = [u8]>>,
    [across, down]: [Span; 2],
    ResizedCrop { size, start: [left, top], interpolation, .. }: ResizedCrop,
    side: usize,
    out: &mut [u8],
) {
    let columns = taps(across, size[0], left..left + side as u32, interpolation);
    let rows = taps(down, size[1], top..top + side as u32, interpolation);
    let pitch = image.width() as usize * CHANNELS;
    let source = &image.as_raw()[down.first as usize * pitch + across.first as usize * CHANNELS..];
    let used = rows.iter().map(|taps| taps.first + taps.weights.len()).max().unwrap_or(0);
    let byte = |sum: i32| (sum >> BITS).clamp(0, 255) as u8;
    let mut narrow = vec![0; used * side];
    for (channel, plane) in out.chunks_exact_mut(side * side).enumerate() {
        for (line, narrow) in source.chunks(pitch).zip(narrow.chunks_exact_mut(side)) {
            for (value, taps) in narrow.iter_mut().zip(&columns) {
                let pixels = line[taps.first * CHANNELS + channel..].iter().step_by(CHANNELS);
                let weighted = pixels.zip(&taps.weights).map(|(byte, weight)| i32::from(*byte) * weight);
                *value = byte(weighted.sum::<i32>() + (1 << (BITS - 1)));
            }
        }
        let mut sums = vec![0; side];
        for (row, taps) in plane.chunks_exact_mut(side).zip(&rows) {
            sums.fill(1 << (BITS - 1));
            for (line, weight) in narrow[taps.first * side..].chunks_exact(side).zip(&taps.weights) {
                sums.iter_mut().zip(line).for_each(|(sum, byte)| *sum += i32::from(*byte) * weight);
            }
            row.iter_mut().zip(&sums).for_each(|(value, sum)| *value = byte(*sum));
        }
    }
}
