//! Decoding of image files, and conversion of images to planes and back.
//!
//! Truncated files are refused, as by PIL and torchvision. JPEGs are decoded in `jpeg.rs`. A panic of a decoder is a
//! fault of its image.

use std::cell::Cell;
use std::io::Cursor;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::metadata::Orientation;
use image::{DynamicImage, ImageBuffer, ImageDecoder, ImageReader, ImageResult, Limits, Rgb, RgbImage};
use kiln_engine::parallel::words;
use kiln_system::file::MIB;

use super::config::Exif;
use super::{exif, jpeg};

pub const SUFFIXES: [&str; 5] = ["jpg", "jpeg", "png", "bmp", "webp"];

/// Most bytes of an encoded image, and of a decoded one.
pub(super) const LARGEST: u64 = 512 * MIB;

/// The first bytes of plain pixels.
const RAW: &[u8] = b"kilnraw1";
/// These, the width and the height.
const RAW_HEAD: u64 = 16;
/// The last chunk of every PNG: length 0, name, checksum.
const PNG_END: &[u8; 12] = b"\0\0\0\0IEND\xae\x42\x60\x82";

thread_local! {
    static IS_DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread decodes an image, so that its panics are reported as a fault of the image.
pub fn is_decoding() -> bool {
    IS_DECODING.get()
}

/// What a decoder unwinds with: the second half of a sentence about the image.
pub(super) struct Failure(pub(super) String);

/// What `decode` returns, or why it unwinds.
pub(super) fn guarded<T>(decode: impl FnOnce() -> T) -> Result<T, String> {
    IS_DECODING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(decode));
    IS_DECODING.set(false);
    outcome.map_err(|panic| match panic.downcast::<Failure>() {
        Ok(failure) => failure.0,
        Err(panic) => format!("makes its decoder fail: {}", one_line(words(&*panic))),
    })
}

/// Some decoders return several lines.
fn one_line(reason: &str) -> String {
    reason.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Decodes an image; `name` is that of its file, whose suffix errors name.
///
/// # Errors
/// If it is truncated or not an image: the second half of a sentence about it.
pub(super) fn decode(bytes: &[u8], name: &[u8], exif: Exif) -> Result<RgbImage, String> {
    if bytes.starts_with(jpeg::START) {
        return jpeg::decode(bytes, exif);
    }
    if let Some(reason) = cut_off(bytes) {
        return Err(format!("is cut off: {reason}"));
    }
    if let Some(image) = plain_pixels(bytes) {
        let image = image?;
        let copied = RgbImage::from_raw(image.width(), image.height(), image.to_vec());
        return Ok(copied.unwrap_or_default());
    }
    let image = guarded(|| loaded(bytes, exif))?
        .map_err(|reason| format!("is not a {}: {}", kind(name), one_line(&reason.to_string())))?;
    Ok(image.into_rgb8())
}

fn loaded(bytes: &[u8], exif: Exif) -> ImageResult<DynamicImage> {
    let mut decoder = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?.into_decoder()?;
    // A file of a hundred bytes can claim any size. An image of one channel becomes one of three.
    let (width, height) = decoder.dimensions();
    let plain = u64::from(width).saturating_mul(u64::from(height)).saturating_mul(3).saturating_add(RAW_HEAD);
    let mut limits = Limits::default();
    limits.max_alloc = Some(LARGEST);
    limits.reserve(decoder.total_bytes().max(plain))?;
    decoder.set_limits(limits)?;
    let block = if exif == Exif::Apply { decoder.exif_metadata()? } else { None };
    let orientation = block.and_then(|block| exif::orientation(&block)).unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    Ok(image)
}

/// An image as plain pixels, which [`decode`] reads without decoding: magic number, width, height, red, green and blue
/// of every pixel.
pub(super) fn to_raw(image: &RgbImage) -> Vec<u8> {
    [RAW, &image.width().to_le_bytes(), &image.height().to_le_bytes(), image].concat()
}

/// An image in memory of somebody else's.
type Pixels<'a> = ImageBuffer<Rgb<u8>, &'a [u8]>;

/// The inverse of [`to_raw`], without a copy; `None` if the bytes are those of another format.
pub(super) fn plain_pixels(bytes: &[u8]) -> Option<Result<Pixels<'_>, String>> {
    let bytes = bytes.strip_prefix(RAW)?;
    let image = || {
        let (width, rest) = bytes.split_first_chunk()?;
        let (height, pixels) = rest.split_first_chunk()?;
        let [width, height] = [width, height].map(|side| u32::from_le_bytes(*side));
        let is_whole = u64::from(width) * u64::from(height) * 3 == pixels.len() as u64 && !pixels.is_empty();
        if is_whole { ImageBuffer::from_raw(width, height, pixels) } else { None }
    };
    Some(image().ok_or_else(|| "has more or fewer pixels than it says".into()))
}

/// A cheap check that [`decode`] will succeed: whether the first and last of `length` bytes, which `read` gives from
/// any position, fit the format. Does not find damage in between.
pub(super) fn has_both_ends(
    read: impl Fn(&mut [u8], u64) -> std::io::Result<()>,
    length: u64,
) -> std::io::Result<bool> {
    let (mut start, mut end) = ([0; 12], [0; 12]);
    if length < 12 {
        return Ok(false);
    }
    read(&mut start, 0)?;
    read(&mut end, length - 12)?;
    let stated = |at: usize| u64::from(u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]));
    Ok(match &start {
        [0xff, 0xd8, ..] => end.ends_with(b"\xff\xd9"),
        [0x89, b'P', b'N', b'G', ..] => end == *PNG_END,
        [b'B', b'M', ..] => stated(2) == length,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => stated(4) + 8 == length,
        _ => false,
    })
}

/// Whether the suffix of a file's name is that of an image.
pub fn is_image(name: &[u8]) -> bool {
    SUFFIXES.iter().any(|known| suffix(name).eq_ignore_ascii_case(known))
}

fn suffix(name: &[u8]) -> &str {
    let start = name.iter().rposition(|byte| *byte == b'.').map_or(name.len(), |dot| dot + 1);
    std::str::from_utf8(&name[start..]).unwrap_or_default()
}

/// The reason why an image is truncated, for formats whose decoder does not report it.
fn cut_off(bytes: &[u8]) -> Option<String> {
    let length = bytes.len();
    match bytes.first_chunk::<12>() {
        Some([b'R', b'I', b'F', b'F', stated @ .., b'W', b'E', b'B', b'P']) => {
            let whole = u64::from(u32::from_le_bytes(*stated)) + 8;
            let cut = (whole > length as u64).then(|| format!("the WebP ends after {length} of {whole} bytes"));
            cut.or_else(|| has_endless_chunk(bytes).then(|| "a chunk of the WebP goes beyond its end".into()))
        }
        _ => None,
    }
}

/// Whether a chunk of an extended WebP says that it is longer than the file: its decoder would make room for up to 4
/// GiB.
fn has_endless_chunk(bytes: &[u8]) -> bool {
    let mut rest = &bytes[12..];
    if !rest.starts_with(b"VP8X") {
        return false;
    }
    while let Some(([_, _, _, _, length @ ..], behind)) = rest.split_first_chunk::<8>() {
        let length = u32::from_le_bytes(*length) as usize;
        if length > behind.len() {
            return true;
        }
        // Chunks begin at even positions.
        rest = behind.get(length.next_multiple_of(2)..).unwrap_or_default();
    }
    false
}

/// The format of a file by its suffix.
fn kind(name: &[u8]) -> &'static str {
    match suffix(name).to_ascii_lowercase().as_str() {
        "png" => "PNG",
        "bmp" => "BMP",
        "webp" => "WebP",
        _ => "JPEG",
    }
}

/// Planes of red, green and blue, `[3, height, width]`, as an image.
pub fn to_image(planes: &[u8], [height, width]: [usize; 2]) -> RgbImage {
    RgbImage::from_fn(width as u32, height as u32, |column, row| {
        let at = row as usize * width + column as usize;
        Rgb([0, 1, 2].map(|channel| planes[channel * height * width + at]))
    })
}

/// The inverse of [`to_image`].
pub(super) fn to_planes(image: &ImageBuffer<Rgb<u8>, impl Deref<Target = [u8]>>, out: &mut [u8]) {
    let area = (image.width() * image.height()) as usize;
    for (index, pixel) in image.pixels().enumerate() {
        for (channel, value) in pixel.0.into_iter().enumerate() {
            out[channel * area + index] = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_decoder_is_a_fault_of_its_image() {
        assert_eq!(guarded(is_decoding), Ok(true));
        let fault = guarded(|| panic!("index out of bounds:\n  the len is {}", 3));
        assert_eq!(fault, Err("makes its decoder fail: index out of bounds: the len is 3".into()));
        assert!(!is_decoding());
    }

    #[test]
    fn a_chunk_beyond_the_end_of_a_webp_is_refused() {
        let file = |length: u32| {
            let chunks = [b"WEBPVP8X", &10_u32.to_le_bytes()[..], &[8; 10], b"EXIF", &length.to_le_bytes(), b"II*\0"];
            let chunks = chunks.concat();
            [b"RIFF", &(chunks.len() as u32).to_le_bytes()[..], &chunks].concat()
        };
        for (length, is_cut) in [(4, false), (3, false), (5, true), (u32::MAX, true)] {
            let fault = decode(&file(length), b"it.webp", Exif::Apply).expect_err("it is no image");
            assert_eq!(fault.contains("a chunk of the WebP goes beyond its end"), is_cut, "{length}: {fault}");
        }
    }
}
