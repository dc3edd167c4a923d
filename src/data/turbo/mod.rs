//! Decoding of the part of a JPEG that is shown, by libjpeg-turbo, if need be shrunk by its scaled inverse transform.
//!
//! Rows behind the part are not read, and those before it and columns beside it only parsed. What is decoded has the bytes
//! that the decoder gives for the whole, which are those of PIL. JPEGs about which it has any complaint, and those that it
//! does not convert to RGB, are left to the other decoder, which decides what is damaged.

use std::io::Cursor;

use image::codecs::jpeg::JpegDecoder;
use image::metadata::Orientation;
use image::{ImageDecoder, RgbImage};

use super::config::{Decode, Exif};
use super::decode::LARGEST;
use super::resample::{Part, Span, View};

/// Columns on both sides that the interpolation of colours reads.
const MARGIN: u32 = 2;
/// The most columns by which whole blocks are wider than what is asked for: a block of four samples on both sides.
const BLOCKS: u32 = 2 * 32;

unsafe extern "C" {
    fn kiln_jpeg_size(bytes: *const u8, length: usize, size: *mut u32) -> i32;
    fn kiln_jpeg_decode(
        bytes: *const u8,
        length: usize,
        eighths: u32,
        area: *mut u32,
        out: *mut u8,
        room: usize,
    ) -> i32;
}

/// Decodes the part that `view` names for an image of `[width, height]`; returns some of the image, and which columns and
/// rows of that the part is. `None` if that is for another decoder to do.
pub(super) fn decode(
    bytes: &[u8],
    (decode, exif): (Decode, Exif),
    view: impl FnOnce([u32; 2]) -> View,
) -> Option<(RgbImage, [Span; 2], View)> {
    if decode == Decode::Whole || !bytes.starts_with(b"\xff\xd8") || is_turned(bytes, exif) {
        return None;
    }
    let mut size = [0; 2];
    // SAFETY: two numbers are written.
    if unsafe { kiln_jpeg_size(bytes.as_ptr(), bytes.len(), size.as_mut_ptr()) } == 0 {
        return None;
    }
    // All of a progressive JPEG is in memory, however small the part, and some hundred bytes can claim any size.
    if u64::from(size[0]) * u64::from(size[1]) * 3 > LARGEST {
        return None;
    }
    let view = view(size);
    let eighths = if decode == Decode::Scaled { eighths(view) } else { 8 };
    let [across, down] = scaled(view.part, eighths);
    let width = size[0].div_ceil(8 / eighths);
    let left = across.first.saturating_sub(MARGIN);
    let mut area = [left, down.first, (across.first + across.pixels + MARGIN).min(width) - left, down.pixels];
    let mut pixels = vec![0; (area[2] + BLOCKS) as usize * area[3] as usize * 3];
    let (out, room) = (pixels.as_mut_ptr(), pixels.len());
    // SAFETY: four numbers are read and written, and no more bytes than there is room for.
    if unsafe { kiln_jpeg_decode(bytes.as_ptr(), bytes.len(), eighths, area.as_mut_ptr(), out, room) } == 0 {
        return None;
    }
    let image = RgbImage::from_raw(area[2], area[3], pixels)?;
    Some((image, [Span { first: across.first - area[0], ..across }, Span { first: 0, ..down }], view))
}

/// The least of the sizes 1/8, 1/4, 1/2 and 1 at which the part has as many pixels as what it becomes.
fn eighths(View { part, size, .. }: View) -> u32 {
    let holds = |eighths: &u32| {
        [(part.width, size[0]), (part.height, size[1])].iter().all(|(from, to)| from / 8 * eighths >= *to)
    };
    [1, 2, 4].into_iter().find(holds).unwrap_or(8)
}

/// The columns and rows of a part when the image is shrunk.
fn scaled(part: Part, eighths: u32) -> [Span; 2] {
    part.spans().map(|Span { first, pixels, .. }| {
        let times = 8 / eighths;
        let (start, end) = (first / times, (first + pixels).div_ceil(times));
        let [offset, length] = [first % times, pixels].map(|pixels| pixels as f32 / times as f32);
        Span { first: start, pixels: end - start, start: offset, length }
    })
}

/// Whether the image must be turned after it is decoded.
fn is_turned(bytes: &[u8], exif: Exif) -> bool {
    let turned = |mut decoder: JpegDecoder<_>| decoder.orientation().is_ok_and(|it| it != Orientation::NoTransforms);
    exif == Exif::Apply && JpegDecoder::new(Cursor::new(bytes)).map_or(true, turned)
}
