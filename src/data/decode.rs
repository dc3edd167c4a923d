//! Image files to pictures, and pictures to the bytes of a data set and back.

use std::path::Path;

use image::{Rgb, RgbImage};

use crate::error::{Error, Result};

/// The picture in a file.
///
/// # Errors
/// When it cannot be read, or is no image.
pub(super) fn picture_of(path: &Path) -> Result<RgbImage> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let image = image::load_from_memory(&bytes).map_err(|reason| {
        let kind = if path.extension().is_some_and(|it| it.eq_ignore_ascii_case("png")) { "PNG" } else { "JPEG" };
        Error::Data(format!("'{}' is not a {kind}: {reason}; replace or remove it", path.display()))
    })?;
    Ok(image.into_rgb8())
}

/// Planes of red, green and blue, `[3, height, width]`, as a picture.
pub(crate) fn to_image(planes: &[u8], [height, width]: [usize; 2]) -> RgbImage {
    RgbImage::from_fn(width as u32, height as u32, |column, row| {
        let at = row as usize * width + column as usize;
        Rgb([0, 1, 2].map(|channel| planes[channel * height * width + at]))
    })
}

/// The inverse of [`to_image`].
pub(super) fn to_planes(image: &RgbImage, out: &mut [u8]) {
    let area = (image.width() * image.height()) as usize;
    for (index, pixel) in image.pixels().enumerate() {
        for (channel, value) in pixel.0.into_iter().enumerate() {
            out[channel * area + index] = value;
        }
    }
}
