//! Cropping and resizing of images to the square input of a model.
//!
//! For training a random part (Szegedy et al. 2015, "Going Deeper with Convolutions", section 6), as torchvision's
//! `RandomResizedCrop`; for validation the central square, as its `Resize` and `CenterCrop`; or the whole image,
//! squeezed. Images that already have the size are not changed.

use std::ops::Deref;
use std::path::Path;

use image::{ImageBuffer, Rgb};
use kiln_system::file;
use kiln_system::{Error, Result, shown};

use super::config::{DataConfig, Decode, Exif};
use super::decode::{LARGEST, decode, plain_pixels, to_planes};
use super::integer;
use super::interpolation::Interpolation;
use super::jpeg;
use super::resample::{CropBox, ResizedCrop, Span, resample};
use super::sample_key::{Purpose, SampleKey};

/// Smallest and largest ratio of width to height of a random part; uniform in the logarithm.
const RATIO: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0];

/// Random parts that are drawn until one lies in the image.
const ATTEMPTS: u32 = 10;

/// Images with a larger ratio of sides are cropped to it before they are resized.
const LONGEST: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Framing {
    /// Side of the central square as a share of the shorter side; 0 means the whole image.
    pub middle: f64,
    /// Smallest share of the image's area in a random part; 0 means no random part.
    pub area: f64,
    /// Whether a decoded image is turned upright first.
    pub exif: Exif,
    /// How much of a JPEG is decoded, and by what.
    pub decode: Decode,
    /// How the part is resized; none for bilinear or bicubic, drawn for each image.
    pub interpolation: Option<Interpolation>,
}

impl Framing {
    /// The whole image, squeezed.
    pub const WHOLE: Self = Self {
        middle: 0.0,
        area: 0.0,
        exif: Exif::Ignore,
        decode: Decode::Whole,
        interpolation: Some(Interpolation::Bilinear),
    };

    pub fn for_validation(config: &DataConfig) -> Self {
        let DataConfig { center_crop: middle, exif, decode, interpolation, .. } = *config;
        Self { middle, area: 0.0, exif, decode, interpolation: Some(interpolation) }
    }

    pub(super) fn for_training(config: &DataConfig) -> Self {
        let validation = Self::for_validation(config);
        if !config.augment {
            return validation;
        }
        let interpolation = config.train_interpolation.fixed(Some(config.interpolation));
        Self { area: config.resized_crop, interpolation, ..validation }
    }

    /// Whether something is drawn in every epoch.
    pub(super) fn is_random(self) -> bool {
        self.area > 0.0 || self.interpolation.is_none()
    }

    /// What is shown of an image of `[width, height]`; random parts need a `key`.
    fn crop(self, dimensions: [u32; 2], side: usize, key: Option<SampleKey>) -> ResizedCrop {
        let square = [side as u32; 2];
        let (part, size) = match key.filter(|_| self.area > 0.0) {
            Some(key) => (self.part(dimensions, key), square),
            None if self.middle > 0.0 => self.centered(dimensions, side as u32),
            None => (CropBox::whole(dimensions), square),
        };
        let start = size.map(|length| (f64::from(length - side as u32) / 2.0).round_ties_even() as u32);
        let is_cubic = || key.is_some_and(|key| key.draw(Purpose::PartSampling, 2) == 1);
        let drawn = || if is_cubic() { Interpolation::Bicubic } else { Interpolation::Bilinear };
        ResizedCrop { part, size, start, interpolation: self.interpolation.unwrap_or_else(drawn) }
    }

    /// Fills `out` with the planes `[3, side, side]` of the framed `image`; random parts need a `key`.
    pub(super) fn show(
        self,
        image: &ImageBuffer<Rgb<u8>, impl Deref<Target = [u8]>>,
        side: usize,
        key: Option<SampleKey>,
        out: &mut [u8],
    ) {
        let (dimensions, square) = (image.dimensions().into(), [side as u32; 2]);
        let crop = self.crop(dimensions, side, key);
        if dimensions == square && crop.part == CropBox::whole(square) && crop.size == square {
            to_planes(image, out);
        } else {
            resized(image, crop.part.spans(), crop, side, out);
        }
    }

    /// [`Framing::show`] for an encoded image; `name` is that of its file.
    pub(super) fn show_encoded(
        self,
        (bytes, name): (&[u8], &[u8]),
        side: usize,
        key: Option<SampleKey>,
        out: &mut [u8],
    ) -> std::result::Result<(), String> {
        if let Some(image) = plain_pixels(bytes) {
            self.show(&image?, side, key, out);
            return Ok(());
        }
        if bytes.starts_with(jpeg::START) {
            let crop = |size| self.crop(size, side, key);
            if let Some((image, spans, crop)) = jpeg::decode_part(bytes, (self.decode, self.exif), crop)? {
                resized(&image, spans, crop, side, out);
                return Ok(());
            }
        }
        self.show(&decode(bytes, name, self.exif)?, side, key, out);
        Ok(())
    }

    /// [`Framing::show`] for an image file.
    pub(super) fn show_file(self, path: &Path, side: usize, key: Option<SampleKey>, out: &mut [u8]) -> Result<()> {
        let bytes = file::read(path, LARGEST).map_err(Error::io("read", path))?;
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        self.show_encoded((&bytes, name), side, key, out)
            .map_err(|fault| Error::Data(format!("'{}' {fault}; replace or remove it", shown(path))))
    }

    /// The random part of a sample's image of `[width, height]`.
    pub fn part(self, [width, height]: [u32; 2], key: SampleKey) -> CropBox {
        let within = |[least, most]: [f64; 2], purpose, nth| least + (most - least) * key.fraction(purpose, nth);
        let tried = (0..ATTEMPTS).map(|nth| {
            let area = f64::from(width) * f64::from(height) * within([self.area, 1.0], Purpose::PartArea, nth);
            let ratio = within(RATIO.map(f64::ln), Purpose::PartAspect, nth).exp();
            [(area * ratio).sqrt(), (area / ratio).sqrt()].map(|side| side.round_ties_even() as u32)
        });
        let fits = |sides: &[u32; 2]| sides[0] > 0 && sides[1] > 0 && sides[0] <= width && sides[1] <= height;
        if let Some([part_width, part_height]) = tried.into_iter().find(fits) {
            let start = |purpose, length: u32, part: u32| key.draw(purpose, length - part + 1);
            let left = start(Purpose::PartLeft, width, part_width);
            let top = start(Purpose::PartTop, height, part_height);
            return CropBox { left, top, width: part_width, height: part_height };
        }
        // The largest central part within the ratios.
        let [wide, high] = [width, height].map(f64::from);
        let part_width = (high * RATIO[1]).min(wide).round_ties_even() as u32;
        let part_height = (wide / RATIO[0]).min(high).round_ties_even() as u32;
        CropBox {
            left: (width - part_width) / 2,
            top: (height - part_height) / 2,
            width: part_width,
            height: part_height,
        }
    }

    /// The part whose shorter side becomes `side / middle` pixels, and its size then; the centre of that is shown.
    fn centered(self, dimensions: [u32; 2], side: u32) -> (CropBox, [u32; 2]) {
        let part = without_ends(CropBox::whole(dimensions));
        let short = (f64::from(side) / self.middle).floor() as u32;
        let long = |long: u32, shorter: u32| (u64::from(short) * u64::from(long) / u64::from(shorter)) as u32;
        let [width, height] = [part.width, part.height];
        (part, if width <= height { [short, long(height, width)] } else { [long(width, height), short] })
    }
}

/// Fills `out` with the planes of the square that `crop` makes of these columns and rows of `image`.
fn resized(
    image: &ImageBuffer<Rgb<u8>, impl Deref<Target = [u8]>>,
    spans: [Span; 2],
    crop: ResizedCrop,
    side: usize,
    out: &mut [u8],
) {
    match crop.interpolation {
        Interpolation::Bilinear => resample(image, spans, crop, side, out),
        Interpolation::Bicubic | Interpolation::Nearest => integer::resample(image, spans, crop, side, out),
    }
}

/// The centre of a very long image, which would need too much memory if enlarged.
fn without_ends(CropBox { width, height, .. }: CropBox) -> CropBox {
    let limit = width.min(height).saturating_mul(LONGEST);
    let [wide, high] = [width.min(limit), height.min(limit)];
    CropBox { left: (width - wide) / 2, top: (height - high) / 2, width: wide, height: high }
}
