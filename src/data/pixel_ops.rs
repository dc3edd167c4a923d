//! Image operations with results bitwise equal to Pillow's.
//!
//! They compute what Pillow 13 computes for an RGB image, on planes `[3, height, width]`: in integers where Pillow
//! does, else with the same floating-point operations in the same order.

use kiln_ops::images::CHANNELS;

/// Source coordinates of an output pixel: `column' = m[0] · [column, row, 1]`, `row' = m[1] · [column, row, 1]`, in
/// pixels.
pub(super) type Inverse = [[f64; 3]; 2];

/// Affine transform with nearest-neighbour sampling in 16.16 fixed point; pixels from outside of the image are `fill`.
pub(super) fn affine(image: &mut [u8], [height, width]: [usize; 2], inverse: Inverse, fill: [u8; CHANNELS]) {
    let fixed = |value: f64| (value * 65536.0 + 0.5).floor() as i64;
    let [column_step, row_step] = inverse.map(|of| [fixed(of[0]), fixed(of[1])]);
    // Coordinates are those of the pixels' centres.
    let [column_start, row_start] = inverse.map(|of| fixed(of[2] + of[0] * 0.5 + of[1] * 0.5));
    let inside = |at: i64, length: usize| usize::try_from(at >> 16).ok().filter(|at| *at < length);
    let source = image.to_vec();
    let planes = source.chunks_exact(height * width).zip(image.chunks_exact_mut(height * width));
    for ((source, target), fill) in planes.zip(fill) {
        for (index, value) in target.iter_mut().enumerate() {
            let (row, column) = ((index / width) as i64, (index % width) as i64);
            let from_column = inside(column_start + column * column_step[0] + row * column_step[1], width);
            let from_row = inside(row_start + column * row_step[0] + row * row_step[1], height);
            *value = from_row.zip(from_column).map_or(fill, |(row, column)| source[row * width + column]);
        }
    }
}

/// The inverse of a counter-clockwise rotation around the centre, as in `Image.rotate`.
pub(super) fn rotation([height, width]: [usize; 2], degrees: f64) -> Inverse {
    let (sin, cos) = (-degrees.to_radians()).sin_cos();
    let [sin, cos] = [sin, cos].map(|value| (value * 1e15).round() / 1e15);
    let (x, y) = (width as f64 / 2.0, height as f64 / 2.0);
    [[cos, sin, (-cos * x - sin * y) + x], [-sin, cos, (sin * x - cos * y) + y]]
}

/// Linear interpolation from `from` (factor 0) to the image (factor 1) and beyond, clipped: `ImageEnhance`.
pub(super) fn blend(from: &[u8], image: &mut [u8], factor: f64) {
    let factor = factor as f32;
    for (value, from) in image.iter_mut().zip(from) {
        let (start, end) = (f32::from(*from), f32::from(*value));
        // The conversion drops the fraction and saturates.
        *value = (start + factor * (end - start)) as u8;
    }
}

/// Brightness `[height, width]`: 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601).
pub(super) fn luma(image: &[u8]) -> Vec<u8> {
    let (red, rest) = image.split_at(image.len() / CHANNELS);
    let (green, blue) = rest.split_at(red.len());
    let weigh = |((red, green), blue): ((&u8, &u8), &u8)| {
        ((u32::from(*red) * 19595 + u32::from(*green) * 38470 + u32::from(*blue) * 7471 + 0x8000) >> 16) as u8
    };
    red.iter().zip(green).zip(blue).map(weigh).collect()
}

/// The mean of all `values`, rounded half up; 0 for none.
pub(super) fn mean(values: &[u8]) -> u8 {
    let sum: u64 = values.iter().map(|value| u64::from(*value)).sum();
    let count = values.len().max(1) as u64;
    ((2 * sum + count) / (2 * count)) as u8
}

/// Turns the hue by a share of the circle: torchvision's `adjust_hue`, in Pillow's HSV of bytes.
pub(super) fn turn_hue(image: &mut [u8], share: f64) {
    let (red, rest) = image.split_at_mut(image.len() / CHANNELS);
    let (green, blue) = rest.split_at_mut(red.len());
    // Both conversions drop the fraction; the sum overflows, as on a circle.
    let step = (share * 255.0) as i32 as u8;
    for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
        let [hue, saturation, value] = to_hsv([*red, *green, *blue]);
        [*red, *green, *blue] = from_hsv([hue.wrapping_add(step), saturation, value]);
    }
}

/// `convert("HSV")`: in f32 where Pillow stores a float, else in f64.
fn to_hsv([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    if most == least {
        return [0, 0, most];
    }
    let range = f32::from(most - least);
    let [r, g, b] = [red, green, blue].map(|level| f32::from(most - level) / range);
    let sixth = match most {
        it if it == red => b - g,
        it if it == green => (2.0 + f64::from(r) - f64::from(b)) as f32,
        _ => (4.0 + f64::from(g) - f64::from(r)) as f32,
    };
    let hue = (f64::from(sixth) / 6.0 + 1.0).rem_euclid(1.0) as f32;
    // The conversions drop the fraction and saturate.
    [(f64::from(hue) * 255.0) as u8, (f64::from(range / f32::from(most)) * 255.0) as u8, most]
}

/// `convert("RGB")` of HSV.
fn from_hsv([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    let sixths = f64::from(hue) * 6.0 / 255.0;
    let sector = sixths.floor();
    let (rest, share) = ((sixths - sector) as f32, (f64::from(saturation) / 255.0) as f32);
    let level = |dimmed: f64| (f64::from(value) * (1.0 - dimmed)).round() as u8;
    let (p, q) = (level(share.into()), level((share * rest).into()));
    let t = level(f64::from(share) * (1.0 - f64::from(rest)));
    match sector as u8 % 6 {
        0 => [value, t, p],
        1 => [q, value, p],
        2 => [p, value, t],
        3 => [p, q, value],
        4 => [t, p, value],
        _ => [value, p, q],
    }
}

/// `ImageFilter.SMOOTH`: 5/13 of each pixel and 1/13 of each of its eight neighbours; the border is unchanged.
pub(super) fn smooth(image: &[u8], [height, width]: [usize; 2]) -> Vec<u8> {
    let mut out = image.to_vec();
    for (plane, out) in image.chunks_exact(height * width).zip(out.chunks_exact_mut(height * width)) {
        for row in 1..height.saturating_sub(1) {
            for column in 1..width.saturating_sub(1) {
                let at = row * width + column;
                let three =
                    |middle: usize| plane[middle - 1..=middle + 1].iter().map(|byte| u32::from(*byte)).sum::<u32>();
                let sum = three(at - width) + three(at) + three(at + width) + 4 * u32::from(plane[at]);
                out[at] = ((sum + 6) / 13) as u8;
            }
        }
    }
    out
}

/// Maps the levels of each channel by the table that `table` computes from its histogram.
pub(super) fn map_levels(image: &mut [u8], table: impl Fn(&[u32; 256]) -> [u8; 256]) {
    let area = image.len() / CHANNELS;
    for plane in image.chunks_exact_mut(area.max(1)) {
        let mut histogram = [0; 256];
        plane.iter().for_each(|byte| histogram[usize::from(*byte)] += 1);
        let table = table(&histogram);
        plane.iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
    }
}

/// Stretches the occurring levels to the full range: `ImageOps.autocontrast`.
pub(super) fn stretched(histogram: &[u32; 256]) -> [u8; 256] {
    let occurs = |count: &u32| *count > 0;
    let lowest = histogram.iter().position(occurs).unwrap_or(0);
    let highest = histogram.iter().rposition(occurs).unwrap_or(0);
    if highest <= lowest {
        return identity();
    }
    let scale = 255.0 / (highest - lowest) as f64;
    let offset = -(lowest as f64) * scale;
    identity().map(|level| (f64::from(level) * scale + offset) as u8)
}

/// Equalises the histogram: `ImageOps.equalize`.
pub(super) fn equalized(histogram: &[u32; 256]) -> [u8; 256] {
    let last = histogram.iter().rfind(|count| **count > 0).copied().unwrap_or(0);
    let step = (histogram.iter().sum::<u32>() - last) / 255;
    if step == 0 {
        return identity();
    }
    let mut below = step / 2;
    std::array::from_fn(|level| {
        let value = below / step;
        below += histogram[level];
        value.min(255) as u8
    })
}

pub(super) fn identity() -> [u8; 256] {
    std::array::from_fn(|level| level as u8)
}
