//! Images of a data set, and what TensorBoard shows, as PNG files.

use std::io::Cursor;

use image::imageops::{FilterType, resize};
use image::{ImageFormat, Rgb, RgbImage};
use kiln_data::{CHANNELS, HostBatch, Normalization, to_image};

use crate::report::evaluation::Evaluation;

/// Columns and rows of a sheet.
const SIDE: usize = 4;
/// Pixels between two images.
const GAP: usize = 2;
/// Pixels of a confusion matrix with few classes, at least.
const MATRIX: u32 = 240;
/// Most classes of a confusion matrix: it has a pixel for every pair of them.
const MOST_CLASSES: usize = 1000;

/// Planes `[3, height, width]` as a PNG file.
pub(super) fn picture(planes: &[u8], size: [usize; 2]) -> Vec<u8> {
    png(&to_image(planes, size))
}

/// The first images of a batch as the model gets them, without normalisation.
pub(super) fn sheet(batch: &HostBatch, normalization: Normalization) -> Vec<u8> {
    let [height, width] = batch.images.size;
    let pixels = batch.images.on_host();
    let area = height * width;
    let side = |length: usize| (SIDE * (length + GAP) - GAP) as u32;
    let mut sheet = RgbImage::from_pixel(side(width), side(height), Rgb([255; CHANNELS]));
    for (index, image) in pixels.chunks_exact(CHANNELS * area).take(SIDE * SIDE).enumerate() {
        let corner = [index % SIDE * (width + GAP), index / SIDE * (height + GAP)];
        for at in 0..area {
            let colour = [0, 1, 2].map(|channel| {
                let value = image[channel * area + at] * normalization.std[channel] + normalization.mean[channel];
                (255.0 * value).round() as u8
            });
            sheet.put_pixel((corner[0] + at % width) as u32, (corner[1] + at / width) as u32, Rgb(colour));
        }
    }
    png(&sheet)
}

/// The confusion matrix: a row per true class, a column per predicted class, in the colours of the report's picture.
/// `None` for more than [`MOST_CLASSES`].
pub(super) fn matrix(evaluation: &Evaluation) -> Option<Vec<u8>> {
    if evaluation.classes.len() > MOST_CLASSES {
        return None;
    }
    let (scores, side) = (evaluation.scores(), evaluation.classes.len() as u32);
    let mut matrix = RgbImage::from_pixel(side, side, Rgb([255; CHANNELS]));
    for (truth, predicted, images) in &evaluation.confusion {
        // The square root keeps a single mistake visible.
        let share = (*images as f64 / scores[*truth].images.max(1) as f64).sqrt();
        let ink: [u8; CHANNELS] = if truth == predicted { [0x1f, 0x6f, 0xb5] } else { [0xc2, 0x50, 0x0a] };
        let colour = ink.map(|part| (255.0 - share * (255.0 - f64::from(part))) as u8);
        matrix.put_pixel(*predicted as u32, *truth as u32, Rgb(colour));
    }
    let side = side * MATRIX.div_ceil(side.max(1));
    Some(png(&resize(&matrix, side, side, FilterType::Nearest)))
}

fn png(image: &RgbImage) -> Vec<u8> {
    let mut png = Cursor::new(Vec::new());
    image.write_to(&mut png, ImageFormat::Png).expect("a picture in memory has a PNG form");
    png.into_inner()
}
