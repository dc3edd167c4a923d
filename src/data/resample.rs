//! Resizing of a part of an image to planes: bilinear with antialiasing, as in torchvision.
//!
//! Every number is computed by the operations of `image::imageops::resize` with its triangle filter in the same order, so
//! the bytes are equal; but over rows of contiguous numbers, which compilers turn into vector instructions, without a copy
//! of the part, and only where the result is shown.

use image::RgbImage;

use crate::ops::images::CHANNELS;

/// Output rows that the horizontal pass computes side by side.
const LANES: usize = 8;

/// A part of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// First column.
    pub left: u32,
    /// First row.
    pub top: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Part {
    /// All of `image`.
    pub(super) fn of(image: &RgbImage) -> Self {
        Self { left: 0, top: 0, width: image.width(), height: image.height() }
    }
}

/// The weights of the input positions that make up an output position.
struct Taps {
    first: usize,
    weights: Vec<f32>,
}

impl Taps {
    /// Those of `outputs` when a line of `from` pixels becomes one of `to` pixels.
    fn all(from: u32, to: u32, outputs: std::ops::Range<u32>) -> Vec<Self> {
        let ratio = from as f32 / to as f32;
        let support = if ratio < 1.0 { 1.0 } else { ratio };
        let of = |output: u32| {
            let centre = (output as f32 + 0.5) * ratio;
            let first = ((centre - support).floor() as i64).clamp(0, i64::from(from) - 1);
            let end = ((centre + support).ceil() as i64).clamp(first + 1, i64::from(from));
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

/// Resizes `part` of `image` to `size` `[width, height]` and fills `out` with the planes `[3, side, side]` of the square
/// that starts at `[left, top]` of the result.
pub(super) fn resample(
    image: &RgbImage,
    part: Part,
    size: [u32; 2],
    [left, top]: [u32; 2],
    side: usize,
    out: &mut [u8],
) {
    let columns = Taps::all(part.width, size[0], left..left + side as u32);
    let rows = Taps::all(part.height, size[1], top..top + side as u32);
    let (pitch, width) = (image.width() as usize * CHANNELS, part.width as usize * CHANNELS);
    let source = &image.as_raw()[part.top as usize * pitch + part.left as usize * CHANNELS..];
    let (mut row, mut block) = (vec![0.0; width], vec![[0.0; LANES]; width]);
    for (first, rows) in (0..).step_by(LANES).zip(rows.chunks(LANES)) {
        for (lane, taps) in rows.iter().enumerate() {
            vertical(&source[taps.first * pitch..], pitch, &taps.weights, &mut row);
            block.iter_mut().zip(&row).for_each(|(lanes, value)| lanes[lane] = *value);
        }
        for (column, taps) in columns.iter().enumerate() {
            for channel in 0..CHANNELS {
                let bytes = horizontal(&block[taps.first * CHANNELS + channel..], &taps.weights);
                for (lane, byte) in bytes.into_iter().take(rows.len()).enumerate() {
                    out[(channel * side + first + lane) * side + column] = byte;
                }
            }
        }
    }
}

/// One row of the part in the new height: a weighted sum of rows.
fn vertical(source: &[u8], pitch: usize, weights: &[f32], row: &mut [f32]) {
    row.fill(0.0);
    for (input, weight) in source.chunks(pitch).zip(weights) {
        row.iter_mut().zip(input).for_each(|(sum, byte)| *sum += f32::from(*byte) * weight);
    }
}

/// One channel of one column of the result: a weighted sum of every third entry.
fn horizontal(block: &[[f32; LANES]], weights: &[f32]) -> [u8; LANES] {
    let mut sums = [0.0; LANES];
    for (lanes, weight) in block.iter().step_by(CHANNELS).zip(weights) {
        sums.iter_mut().zip(lanes).for_each(|(sum, value)| *sum += value * weight);
    }
    sums.map(|sum: f32| {
        // Rounds half up, by operations that every processor has for vectors.
        let sum = sum.clamp(0.0, 255.0);
        let whole = sum as i32;
        (whole + i32::from(sum - whole as f32 >= 0.5)) as u8
    })
}
