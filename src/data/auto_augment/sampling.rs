//! Affine transforms with interpolation, bitwise equal to Pillow's.

use kiln_ops::images::CHANNELS;

use crate::interpolation::Interpolation;
use crate::pixel_ops::Inverse;

/// The value at a share `at` of the way from the entry 1 of four to the entry 2.
#[inline(always)]
fn between(interpolation: Interpolation, entry: impl Fn(usize) -> f64, at: f64) -> f64 {
    match interpolation {
        Interpolation::Nearest => entry(1),
        Interpolation::Bilinear => entry(1) + (entry(2) - entry(1)) * at,
        // The cubic of Pillow's transforms is sharper than that of its resizing.
        Interpolation::Bicubic => {
            let [a, b, c, d] = [0, 1, 2, 3].map(entry);
            b + at * ((c - a) + at * ((2.0 * (a - b) + c - d) + at * (b - a - c + d)))
        }
    }
}

/// As [`affine`](crate::pixel_ops::affine), but interpolates.
pub(super) fn sampled(
    image: &mut [u8],
    [height, width]: [usize; 2],
    inverse: Inverse,
    fill: [u8; CHANNELS],
    interpolation: Interpolation,
) {
    let (source, area) = (image.to_vec(), height * width);
    // Beyond the border the pixels of the border count.
    let near = |at: i64, length: usize| [-1, 0, 1, 2].map(|step| (at + step).clamp(0, length as i64 - 1) as usize);
    for index in 0..area {
        let (row, column) = ((index / width) as f64 + 0.5, (index % width) as f64 + 0.5);
        let [x, y] = inverse.map(|of| of[0] * column + of[1] * row + of[2]);
        let is_inside = (0.0..width as f64).contains(&x) && (0.0..height as f64).contains(&y);
        // Both are above -1: the conversion rounds towards 0.
        let whole = |at: f64| at as i64 - i64::from(at < 0.0);
        let [(left, across), (top, down)] = [x - 0.5, y - 0.5].map(|at| (whole(at), at - whole(at) as f64));
        let (columns, rows) = (near(left, width), near(top, height));
        for (channel, fill) in fill.into_iter().enumerate() {
            let plane = &source[channel * area..][..area];
            let pixel = |row: usize, column: usize| f64::from(plane[rows[row] * width + columns[column]]);
            let line = |row| between(interpolation, |column| pixel(row, column), across);
            // The conversion drops the fraction and saturates.
            image[channel * area + index] = if is_inside { between(interpolation, line, down) as u8 } else { fill };
        }
    }
}
