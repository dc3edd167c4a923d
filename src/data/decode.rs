//! Decoding of image files, and conversion of images to planes and back.
//!
//! Truncated files are refused, as by PIL and torchvision; the decoder itself would fill the missing part with grey.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use image::{Rgb, RgbImage};

use crate::error::{Error, Result};
use crate::file::{self, MIB};

pub(super) const SUFFIXES: [&str; 5] = ["jpg", "jpeg", "png", "bmp", "webp"];

/// Most bytes of a file, which is also the decoder's limit for an image in memory.
const LARGEST: u64 = 512 * MIB;

/// The first bytes of every JPEG.
const JPEG: &[u8] = b"\xff\xd8";
/// The last chunk of every PNG: length 0, name, checksum.
const PNG_END: &[u8; 12] = b"\0\0\0\0IEND\xae\x42\x60\x82";

/// Decodes an image file.
///
/// # Errors
/// If it cannot be read, is not an image, or is truncated.
pub(super) fn picture_of(path: &Path) -> Result<RgbImage> {
    let bytes = file::read(path, LARGEST).map_err(Error::io("read", path))?;
    if let Some(reason) = cut_off(&bytes) {
        return Err(Error::Data(format!("'{}' is cut off: {reason}; replace or remove it", path.display())));
    }
    let image = image::load_from_memory(&bytes).map_err(|reason| {
        // Some decoders return several lines.
        let reason = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        Error::Data(format!("'{}' is not a {}: {reason}; replace or remove it", path.display(), kind(path)))
    })?;
    Ok(image.into_rgb8())
}

/// A cheap check that [`picture_of`] will succeed: reads the first and last bytes, and decodes only if they do not fit
/// the format. Does not find damage in between.
///
/// # Errors
/// Those of [`picture_of`].
pub(super) fn check(path: &Path) -> Result<()> {
    if has_both_ends(path).unwrap_or(false) { Ok(()) } else { picture_of(path).map(drop) }
}

fn has_both_ends(path: &Path) -> std::io::Result<bool> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let (mut start, mut end) = ([0; 12], [0; 12]);
    file.read_exact_at(&mut start, 0)?;
    file.read_exact_at(&mut end, length.saturating_sub(12))?;
    let stated = |at: usize| u64::from(u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]));
    Ok(match &start {
        [0xff, 0xd8, ..] => end.ends_with(b"\xff\xd9"),
        [0x89, b'P', b'N', b'G', ..] => end == *PNG_END,
        [b'B', b'M', ..] => stated(2) == length,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => stated(4) + 8 == length,
        _ => false,
    })
}

/// The reason why an image is truncated, for formats whose decoder does not report it.
fn cut_off(bytes: &[u8]) -> Option<String> {
    let length = bytes.len();
    match bytes.first_chunk::<12>() {
        Some([b'R', b'I', b'F', b'F', stated @ .., b'W', b'E', b'B', b'P']) => {
            let whole = u64::from(u32::from_le_bytes(*stated)) + 8;
            (whole > length as u64).then(|| format!("the WebP ends after {length} of {whole} bytes"))
        }
        _ if bytes.starts_with(JPEG) && !reaches_end(bytes) => {
            Some(format!("the JPEG ends after {length} bytes without an end-of-image marker"))
        }
        _ => None,
    }
}

/// Whether a JPEG has an end-of-image marker, found by following its markers (ITU T.81, annex B).
fn reaches_end(bytes: &[u8]) -> bool {
    let mut rest = &bytes[JPEG.len()..];
    // Between markers lies entropy-coded data, in which 0 follows each 0xff.
    while let Some(at) = rest.iter().position(|byte| *byte == 0xff) {
        // A marker may be preceded by any number of 0xff.
        let Some(code) = rest[at..].iter().position(|byte| *byte != 0xff) else { return false };
        let marker = rest[at + code];
        rest = &rest[at + code + 1..];
        match marker {
            0xd9 => return true,
            // Markers without a segment: stuffed zero, TEM, restarts, start of image.
            0x00 | 0x01 | 0xd0..=0xd8 => {}
            _ => match rest.first_chunk().and_then(|it| rest.get(usize::from(u16::from_be_bytes(*it))..)) {
                Some(behind) => rest = behind,
                None => return false,
            },
        }
    }
    false
}

/// The format of a file by its suffix.
fn kind(path: &Path) -> &'static str {
    let suffix = path.extension().unwrap_or_default().to_ascii_lowercase();
    match suffix.to_str().unwrap_or_default() {
        "png" => "PNG",
        "bmp" => "BMP",
        "webp" => "WebP",
        _ => "JPEG",
    }
}

/// Planes of red, green and blue, `[3, height, width]`, as an image.
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
