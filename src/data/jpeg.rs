//! JPEGs, decoded by libjpeg-turbo: the pixels of PIL and torchvision, byte for byte.
//!
//! All of an image is decoded, or only the part that is shown, if need be shrunk by the scaled inverse transform. Rows
//! behind the part are not read, rows before it and columns beside it only parsed; the pixels of the part stay the
//! same.
//!
//! Damage that libjpeg notices in the coded data is an error; PIL would go on with what it has. Everything else that
//! PIL accepts is accepted. libjpeg's functions report errors by unwinding, which [`guarded`] catches.

use std::any::Any;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::slice;

use image::metadata::Orientation;
use image::{DynamicImage, RgbImage};
use mozjpeg_sys::{self as ffi, J_COLOR_SPACE, jpeg_common_struct, jpeg_decompress_struct};

use super::config::{Decode, Exif};
use super::decode::{Failure, LARGEST, guarded};
use super::exif;
use super::resample::{CropBox, ResizedCrop, Span};

/// The first bytes of every JPEG.
pub(super) const START: &[u8] = b"\xff\xd8";

/// Columns on both sides that the interpolation of colours reads.
const MARGIN: u32 = 2;
/// More scans are refused: one of a few bytes goes through all of an image.
const MOST_SCANS: i32 = 100;

const EXIF_MARKER: i32 = 0xe1;

/// An image and which of its columns and rows are shown.
pub(super) type DecodedCrop = (RgbImage, [Span; 2], ResizedCrop);

/// Decodes all of a JPEG.
///
/// # Errors
/// The second half of a sentence about it, as in `is cut off: ...`.
pub(super) fn decode(bytes: &[u8], exif: Exif) -> Result<RgbImage, String> {
    guarded(|| {
        let mut jpeg = Jpeg::open(bytes);
        let orientation = jpeg.orientation(exif);
        let image = jpeg.pixels(8, None).0;
        if orientation == Orientation::NoTransforms {
            return image;
        }
        let mut image = DynamicImage::from(image);
        image.apply_orientation(orientation);
        image.into_rgb8()
    })
}

/// Decodes the part that `crop` names for an image of `[width, height]`; `None` if all of it must be decoded: it has to
/// be turned, has the colours of print, or `decode` says so.
pub(super) fn decode_part(
    bytes: &[u8],
    (decode, exif): (Decode, Exif),
    crop: impl FnOnce([u32; 2]) -> ResizedCrop,
) -> Result<Option<DecodedCrop>, String> {
    if decode == Decode::Whole {
        return Ok(None);
    }
    guarded(|| {
        let mut jpeg = Jpeg::open(bytes);
        if jpeg.orientation(exif) != Orientation::NoTransforms || jpeg.is_cmyk() {
            return None;
        }
        let size = [jpeg.info.image_width, jpeg.info.image_height];
        let crop = crop(size);
        let eighths = if decode == Decode::Scaled { eighths(crop) } else { 8 };
        let [across, down] = scaled(crop.part, eighths);
        let (image, left) = jpeg.pixels(eighths, Some([across, down]));
        Some((image, [Span { first: across.first - left, ..across }, Span { first: 0, ..down }], crop))
    })
}

/// The least of the sizes 1/8, 1/4, 1/2 and 1 at which the part has as many pixels as what it becomes.
fn eighths(ResizedCrop { part, size, .. }: ResizedCrop) -> u32 {
    let holds = |eighths: &u32| {
        [(part.width, size[0]), (part.height, size[1])].iter().all(|(from, to)| from / 8 * eighths >= *to)
    };
    [1, 2, 4].into_iter().find(holds).unwrap_or(8)
}

/// The columns and rows of a part when the image is shrunk.
fn scaled(part: CropBox, eighths: u32) -> [Span; 2] {
    part.spans().map(|Span { first, pixels, .. }| {
        let times = 8 / eighths;
        let (start, end) = (first / times, (first + pixels).div_ceil(times));
        let [offset, length] = [first % times, pixels].map(|pixels| pixels as f32 / times as f32);
        Span { first: start, pixels: end - start, start: offset, length }
    })
}

/// libjpeg's decoder for `'a` bytes. Its methods unwind with a [`Failure`].
struct Jpeg<'a> {
    info: Box<jpeg_decompress_struct>,
    // `info` points to them.
    _error: Box<ffi::jpeg_error_mgr>,
    _progress: Box<ffi::jpeg_progress_mgr>,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Jpeg<'a> {
    fn open(bytes: &'a [u8]) -> Self {
        // SAFETY: these are plain C structures, which libjpeg expects to be zero; all pointers stay valid in their
        // boxes.
        unsafe {
            let mut error: Box<ffi::jpeg_error_mgr> = Box::new(std::mem::zeroed());
            ffi::jpeg_std_error(&mut error);
            error.error_exit = Some(fail);
            error.emit_message = Some(weigh);
            let mut progress: Box<ffi::jpeg_progress_mgr> = Box::new(std::mem::zeroed());
            progress.progress_monitor = Some(count_scans);
            let mut info: Box<jpeg_decompress_struct> = Box::new(std::mem::zeroed());
            info.common.err = &raw mut *error;
            ffi::jpeg_create_decompress(&raw mut *info);
            info.common.progress = &raw mut *progress;
            // For what is said of a JPEG that is cut off.
            info.common.client_data = bytes.len() as *mut _;
            let mut jpeg = Self { info, _error: error, _progress: progress, bytes: PhantomData };
            ffi::jpeg_mem_src(&mut jpeg.info, bytes.as_ptr(), bytes.len() as _);
            ffi::jpeg_save_markers(&mut jpeg.info, EXIF_MARKER, 0xffff);
            ffi::jpeg_read_header(&mut jpeg.info, 1);
            jpeg
        }
    }

    fn is_cmyk(&self) -> bool {
        matches!(self.info.jpeg_color_space, J_COLOR_SPACE::JCS_CMYK | J_COLOR_SPACE::JCS_YCCK)
    }

    fn orientation(&self, exif: Exif) -> Orientation {
        let mut marker = if exif == Exif::Apply { self.info.marker_list } else { null_mut() };
        // SAFETY: libjpeg's list of the markers that it saved, which lives as long as `info`.
        while let Some(it) = unsafe { marker.as_ref() } {
            let content = unsafe { slice::from_raw_parts(it.data, it.data_length as usize) };
            if content.starts_with(exif::START) {
                return exif::orientation(content).unwrap_or(Orientation::NoTransforms);
            }
            marker = it.next;
        }
        Orientation::NoTransforms
    }

    /// The image, shrunk to `eighths`, or the columns and rows in `part` with some columns around; and its first
    /// column.
    fn pixels(&mut self, eighths: u32, part: Option<[Span; 2]>) -> (RgbImage, u32) {
        let is_cmyk = self.is_cmyk();
        let info = &mut *self.info;
        // A file of a hundred bytes can claim any size.
        if u64::from(info.image_width) * u64::from(info.image_height) * 3 > LARGEST {
            let size = format!("{}x{}", info.image_width, info.image_height);
            unwind(format!("has '{size}' pixels, more than {} MiB", LARGEST >> 20));
        }
        info.out_color_space = if is_cmyk { J_COLOR_SPACE::JCS_CMYK } else { J_COLOR_SPACE::JCS_RGB };
        (info.scale_num, info.scale_denom) = (eighths, 8);
        // SAFETY: libjpeg writes rows of `output_width` pixels, for which `pixels` has room.
        unsafe {
            ffi::jpeg_start_decompress(info);
            let (mut left, mut rows) = (0, 0..info.output_height);
            if let Some([across, down]) = part {
                left = across.first.saturating_sub(MARGIN);
                let mut width = (across.first + across.pixels + MARGIN).min(info.output_width) - left;
                ffi::jpeg_crop_scanline(info, &mut left, &mut width);
                rows = down.first..down.first + down.pixels;
                if rows.start > 0 {
                    ffi::jpeg_skip_scanlines(info, rows.start);
                }
            }
            let (width, height) = (info.output_width as usize, rows.len());
            let row = width * info.output_components as usize;
            let mut pixels = vec![0; row * height];
            for line in pixels.chunks_exact_mut(row) {
                ffi::jpeg_read_scanlines(info, &mut line.as_mut_ptr(), 1);
            }
            if is_cmyk {
                pixels = pixels.chunks_exact(4).flat_map(rgb).collect();
            }
            let image = RgbImage::from_raw(width as u32, height as u32, pixels);
            (image.expect("three bytes for each pixel"), left)
        }
    }
}

impl Drop for Jpeg<'_> {
    fn drop(&mut self) {
        // SAFETY: `info` was created.
        unsafe { ffi::jpeg_destroy_decompress(&mut self.info) }
    }
}

/// The colour of a pixel in cyan, magenta, yellow and black, stored inverted as by Adobe, by PIL's formula.
fn rgb(inverted: &[u8]) -> [u8; 3] {
    let light = u32::from(inverted[3]);
    [0, 1, 2].map(|channel| {
        let product = (255 - u32::from(inverted[channel])) * light + 128;
        (light - (((product >> 8) + product) >> 8)) as u8
    })
}

/// Ends decoding; `reason` is the second half of a sentence.
fn unwind(reason: String) -> ! {
    // Unlike a panic, this reports nothing.
    let failure: Box<dyn Any + Send> = Box::new(Failure(reason));
    std::panic::resume_unwind(failure)
}

fn message(info: &mut jpeg_common_struct) -> String {
    let mut text = [0_u8; 80];
    // SAFETY: `err` is that of `Jpeg::open`, and no message is longer.
    unsafe {
        let format = (*info.err).format_message.expect("set by jpeg_std_error");
        // It writes to what its binding says is read.
        format(info, &*(&raw mut text).cast_const());
    }
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

unsafe extern "C-unwind" fn fail(info: &mut jpeg_common_struct) {
    unwind(format!("is not a JPEG that libjpeg-turbo decodes: {}", message(info)));
}

/// On a warning or a trace: damage of the coded data ends decoding.
unsafe extern "C-unwind" fn weigh(info: &mut jpeg_common_struct, level: i32) {
    // SAFETY: as above.
    let code = unsafe { (*info.err).msg_code };
    if level >= 0 || code == ffi::JWRN_EXTRANEOUS_DATA {
        return;
    }
    if code == ffi::JWRN_JPEG_EOF {
        unwind(format!("is cut off: the JPEG ends after {} bytes", info.client_data as usize));
    }
    if let Some(damage) = message(info).strip_prefix("Corrupt JPEG data: ") {
        unwind(format!("is damaged: {damage}"));
    }
}

unsafe extern "C-unwind" fn count_scans(info: &mut jpeg_common_struct) {
    // SAFETY: only decoders have this monitor, and their structure begins with the common one.
    let scans = unsafe { (*(&raw mut *info).cast::<jpeg_decompress_struct>()).input_scan_number };
    if scans > MOST_SCANS {
        unwind(format!("has more than {MOST_SCANS} scans"));
    }
}
