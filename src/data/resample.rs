//! Resizing of a part of an image to planes: bilinear with antialiasing, as in torchvision; `integer` has the others.
//!
//! Every number is computed by the operations of `image::imageops::resize` with its triangle filter in the same order,
//! so the bytes are equal; but by vector instructions, without a copy of the part, and only where the result is shown.
//! Sixteen rows of the result are computed side by side: a sum over input rows runs along a row, one over columns
//! across rows.

use std::ops::{Deref, Range};

use image::{ImageBuffer, Rgb};
use kiln_kernels::{LANES, transpose, vectorized};
use kiln_ops::images::CHANNELS;

use super::interpolation::Interpolation;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CropBox {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

impl CropBox {
    /// All of an image of `[width, height]`.
    pub(super) fn whole([width, height]: [u32; 2]) -> Self {
        Self { left: 0, top: 0, width, height }
    }

    /// Its columns and its rows.
    pub(super) fn spans(self) -> [Span; 2] {
        [(self.left, self.width), (self.top, self.height)].map(|(first, length)| Span {
            first,
            pixels: length,
            start: 0.0,
            length: length as f32,
        })
    }
}

/// How the square that is shown is made from an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ResizedCrop {
    pub(super) part: CropBox,
    /// The width and height that it gets.
    pub(super) size: [u32; 2],
    /// The column and the row where the square begins then.
    pub(super) start: [u32; 2],
    pub(super) interpolation: Interpolation,
}

/// A part of the columns or rows of an image, which need not begin or end with a pixel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span {
    /// The first pixel of which it has something.
    pub(super) first: u32,
    /// The number of such pixels.
    pub(super) pixels: u32,
    /// Where it starts, relative to the start of the first.
    pub(super) start: f32,
    /// In pixels.
    pub(super) length: f32,
}

/// The weights of the input pixels that make up one of the output.
struct Taps {
    first: usize,
    weights: Vec<f32>,
}

impl Taps {
    /// Those of `outputs` when `span` becomes a line of `to` pixels.
    fn all(span: Span, to: u32, outputs: Range<u32>) -> Vec<Self> {
        let ratio = span.length / to as f32;
        let support = if ratio < 1.0 { 1.0 } else { ratio };
        let of = |output: u32| {
            let centre = span.start + (output as f32 + 0.5) * ratio;
            let first = ((centre - support).floor() as i64).clamp(0, i64::from(span.pixels) - 1);
            let end = ((centre + support).ceil() as i64).clamp(first + 1, i64::from(span.pixels));
            let centre = centre - 0.5;
            let triangle = |at: f32| if at.abs() < 1.0 { 1.0 - at.abs() } else { 0.0 };
            let weights: Vec<f32> = (first..end).map(|input| triangle((input as f32 - centre) / support)).collect();
            let mut sum = 0.0;
            weights.iter().for_each(|weight| sum += weight);
            Self { first: first as usize, weights: weights.into_iter().map(|weight| weight / sum).collect() }
        };
        outputs.map(of).collect()
    }
}

/// Resizes these columns and rows of `image`, which are the part of the crop, and fills `out` with the planes
/// `[3, side, side]` of the square.
pub(super) fn resample(
    image: &ImageBuffer<Rgb<u8>, impl Deref<Target = [u8]>>,
    [across, down]: [Span; 2],
    ResizedCrop { size, start: [left, top], .. }: ResizedCrop,
    side: usize,
    out: &mut [u8],
) {
    let columns = Taps::all(across, size[0], left..left + side as u32);
    let rows = Taps::all(down, size[1], top..top + side as u32);
    let (pitch, width) = (image.width() as usize * CHANNELS, across.pixels as usize * CHANNELS);
    let source = &image.as_raw()[down.first as usize * pitch + across.first as usize * CHANNELS..];
    let mut lines = vec![0.0; LANES * width.max(side)];
    let mut block = vec![[0.0; LANES]; width];
    let mut sums = vec![[0.0; LANES]; side];
    for (first, rows) in (0..).step_by(LANES).zip(rows.chunks(LANES)) {
        for (line, taps) in lines.chunks_exact_mut(width).zip(rows) {
            vectorized(vertical, (&source[taps.first * pitch..], pitch, &taps.weights[..], line));
        }
        transpose(&lines, width, block.as_flattened_mut(), LANES, [LANES, width]);
        for channel in 0..CHANNELS {
            vectorized(horizontal, (&block[channel..], &columns[..], &mut sums[..]));
            transpose(sums.as_flattened(), LANES, &mut lines, side, [side, LANES]);
            let place = (channel * side + first) * side;
            vectorized(rounded, (&lines[..], &mut out[place..place + rows.len() * side]));
        }
    }
}

/// One row of the part in the new height: a weighted sum of rows.
#[inline(always)]
fn vertical((source, pitch, weights, line): (&[u8], usize, &[f32], &mut [f32])) {
    line.fill(0.0);
    for (input, weight) in source.chunks(pitch).zip(weights) {
        line.iter_mut().zip(input).for_each(|(sum, byte)| *sum += f32::from(*byte) * weight);
    }
}

/// One channel of every column of the result: a weighted sum of every third entry.
#[inline(always)]
fn horizontal((block, columns, results): (&[[f32; LANES]], &[Taps], &mut [[f32; LANES]])) {
    for (result, taps) in results.iter_mut().zip(columns) {
        let mut sums = [0.0; LANES];
        for (lanes, weight) in block[taps.first * CHANNELS..].iter().step_by(CHANNELS).zip(&taps.weights) {
            sums.iter_mut().zip(lanes).for_each(|(sum, value)| *sum += value * weight);
        }
        *result = sums;
    }
}

/// Rounds half up, by operations that every processor has for vectors.
#[inline(always)]
fn rounded((values, bytes): (&[f32], &mut [u8])) {
    for (value, byte) in values.iter().zip(bytes) {
        let value = value.clamp(0.0, 255.0);
        let whole = value as i32;
        *byte = (whole + i32::from(value - whole as f32 >= 0.5)) as u8;
    }
}
