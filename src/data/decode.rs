//! One image file to bytes, and images of one size to another.

use std::path::Path;

use image::imageops::FilterType;
use image::{Rgb, RgbImage};

use crate::error::{Error, Result};

/// Decodes one file, resized to `side` squared, to planes of red, green and blue.
///
/// # Errors
/// When it cannot be read, or is no image.
pub(super) fn decode(path: &Path, side: usize, out: &mut [u8]) -> Result<()> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let image = image::load_from_memory(&bytes).map_err(|reason| {
        let kind = if path.extension().is_some_and(|it| it.eq_ignore_ascii_case("png")) { "PNG" } else { "JPEG" };
        Error::Data(format!("'{}' is not a {kind}: {reason}; replace or remove it", path.display()))
    })?;
    let mut image = image.into_rgb8();
    if image.dimensions() != (side as u32, side as u32) {
        image = image::imageops::resize(&image, side as u32, side as u32, FilterType::Triangle);
    }
    to_planes(&image, out);
    Ok(())
}

/// Planes `[3, height, width]` as an image.
pub(crate) fn to_image(planes: &[u8], [height, width]: [usize; 2]) -> RgbImage {
    RgbImage::from_fn(width as u32, height as u32, |column, row| {
        let at = row as usize * width + column as usize;
        Rgb([0, 1, 2].map(|channel| planes[channel * height * width + at]))
    })
}

/// Resizes planes `[3, height, width]` to `[3, side, side]`, bilinear and smoothed where it shrinks, as torchvision does.
pub(super) fn resize_planes(planes: &[u8], size: [usize; 2], side: usize, out: &mut [u8]) {
    let image = to_image(planes, size);
    to_planes(&image::imageops::resize(&image, side as u32, side as u32, FilterType::Triangle), out);
}

fn to_planes(image: &RgbImage, out: &mut [u8]) {
    let area = (image.width() * image.height()) as usize;
    for (index, pixel) in image.pixels().enumerate() {
        for (channel, value) in pixel.0.into_iter().enumerate() {
            out[channel * area + index] = value;
        }
    }
}
