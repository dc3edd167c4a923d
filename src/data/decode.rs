//! One image file to bytes.

use std::path::Path;

use image::imageops::FilterType;

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
    for (index, pixel) in image.pixels().enumerate() {
        for (channel, value) in pixel.0.into_iter().enumerate() {
            out[channel * side * side + index] = value;
        }
    }
    Ok(())
}
