//! Augmentation of one image.
//!
//! The steps after `framing`: RandAugment or another policy, and colour jitter on the bytes; random crop of the padded
//! image and horizontal flip, which copy each row; cutout and random erasing, which name areas that become 0 after
//! normalisation.
//! Random numbers are drawn by [`SampleKey`], so the result depends on seed, epoch and sample only.

use std::ops::Range;

use kiln_ops::images::{ByteImages, Pixels, VisibleAreas};

use super::auto_augment::AutoAugment;
use super::color_jitter::ColorJitter;
use super::config::{CropFill, DataConfig};
use super::dataset::CHANNELS;
use super::erase::RandomErasing;
use super::normalization::Normalization;
use super::rand_augment::RandAugment;
use super::rectangle::Rectangle;
use super::sample_key::{Purpose, SampleKey};

#[derive(Debug, Clone)]
pub struct Augment {
    rand_augment: Option<RandAugment>,
    auto_augment: AutoAugment,
    color_jitter: Option<ColorJitter>,
    crop_padding: usize,
    crop_fill: CropFill,
    flip: bool,
    cutout: usize,
    erasing: Option<RandomErasing>,
    /// How often a step sees each image: of several views, the first one is only cropped and mirrored.
    pub views: usize,
    erases_first: bool,
    pub(super) normalization: Normalization,
}

/// The random crop of the padded image: an offset in whole pixels, and whether it is mirrored.
#[derive(Debug, Clone, Copy)]
struct PaddedCrop {
    /// Source row of output row 0; may lie outside.
    top: isize,
    /// Source column of output column 0, before mirroring; may lie outside.
    left: isize,
    mirrored: bool,
}

impl Augment {
    /// The configured augmentation of training images.
    pub fn new(config: &DataConfig, normalization: Normalization) -> Self {
        let plain = Self::plain(normalization);
        if !config.augment {
            return plain;
        }
        let DataConfig { crop_fill, flip, cutout, auto_augment, views, erase_first_view: erases_first, .. } = *config;
        let crop_padding = if config.resized_crop > 0.0 { 0 } else { config.crop_padding };
        let (ops, magnitude, probability) =
            (config.rand_augment_ops, config.rand_augment_magnitude, config.random_erasing);
        let rand_augment = (ops > 0).then_some(RandAugment { ops, magnitude, fill: [0; CHANNELS] });
        let erasing = (probability > 0.0).then_some(RandomErasing {
            probability,
            fill: config.erasing_fill,
            count: config.erasing_count,
        });
        let (strength, hue) = (config.color_jitter, config.hue_jitter);
        let color_jitter = (strength > 0.0 || hue > 0.0).then_some(ColorJitter { strength, hue });
        Self {
            rand_augment,
            auto_augment,
            color_jitter,
            crop_padding,
            crop_fill,
            flip,
            cutout,
            erasing,
            views,
            erases_first,
            ..plain
        }
    }

    /// Normalisation only, for validation images.
    pub fn plain(normalization: Normalization) -> Self {
        let (rand_augment, erasing) = (None, None);
        Self {
            rand_augment,
            auto_augment: AutoAugment::None,
            color_jitter: None,
            crop_padding: 0,
            crop_fill: CropFill::Mean,
            flip: false,
            cutout: 0,
            erasing,
            views: 1,
            erases_first: true,
            normalization,
        }
    }

    /// Writes the first view of `image` `[3, height, width]` with `size` `[height, width]` to `out`, of the same shape;
    /// returns which of its pixels have a value.
    ///
    /// Cutout's square is the mean, 0 after normalisation (DeVries and Taylor, 2017).
    pub fn apply(&self, image: &[u8], size: [usize; 2], key: SampleKey, out: &mut [u8]) -> VisibleAreas {
        self.apply_view(0, image, size, key, out)
    }

    /// As [`Augment::apply`], for view `nth`: all views of an image have one crop, and draws of their own for the rest.
    pub fn apply_view(
        &self,
        nth: usize,
        image: &[u8],
        size: [usize; 2],
        key: SampleKey,
        out: &mut [u8],
    ) -> VisibleAreas {
        let [height, width] = size;
        let (crop, key) = (self.crop(key), key.view(nth as u32));
        let is_clean = self.views > 1 && nth == 0;
        let varied = if is_clean { None } else { self.varied(image, size, key) };
        let image = varied.as_deref().unwrap_or(image);
        let (rows, columns) = (visible(crop.top, height), visible(crop.left, width));
        let rows = if columns.is_empty() { 0..0 } else { rows };
        for (source, target) in image.chunks_exact(height * width).zip(out.chunks_exact_mut(height * width)) {
            target.fill(0);
            for row in rows.clone() {
                let from = moved(row, crop.top) * width + moved(columns.start, crop.left);
                let target = &mut target[row * width..][..width];
                target[columns.clone()].copy_from_slice(&source[from..][..columns.len()]);
                if crop.mirrored {
                    target.reverse();
                }
            }
        }
        let columns = if crop.mirrored { width - columns.end..width - columns.start } else { columns };
        let inside = match self.crop_fill {
            CropFill::Mean => Rectangle { rows, columns },
            CropFill::Black => Rectangle { rows: 0..height, columns: 0..width },
        };
        let square = (self.cutout > 0 && !is_clean).then(|| self.square(size, key));
        let erasing = self.erasing.filter(|_| self.erases_first || !is_clean);
        let mut erased = erasing.map_or_else(Vec::new, |erasing| erasing.draw(size, key));
        if let Some(erasing) = erasing.filter(RandomErasing::is_written) {
            erasing.write(&erased, out, width, self.normalization, key);
            erased.clear();
        }
        [Some(inside), square, erased.pop()].map(|area| area.map_or([0; 4], |area| area.bounds()))
    }

    /// The image after RandAugment or another policy and colour jitter, if there are any.
    fn varied(&self, image: &[u8], size: [usize; 2], key: SampleKey) -> Option<Vec<u8>> {
        let mut varied = self.rand_augment.map(|it| it.apply(image, size, key));
        if self.auto_augment != AutoAugment::None {
            let mean = self.normalization.mean.map(|mean| (255.0 * mean).round() as u8);
            varied = Some(self.auto_augment.apply(varied.as_deref().unwrap_or(image), size, mean, key));
        }
        if let Some(jitter) = self.color_jitter {
            jitter.apply(varied.get_or_insert_with(|| image.to_vec()), key);
        }
        varied
    }

    /// One image as the network gets it, `[3, height, width]`.
    pub fn normalized(&self, image: &[u8], size: [usize; 2], key: SampleKey) -> Vec<f32> {
        let mut bytes = vec![0; image.len()];
        let shown = vec![self.apply(image, size, key, &mut bytes)];
        self.images(Pixels { bytes, shown }, size).on_host()
    }

    /// Images that are not mixed.
    pub(super) fn images(&self, own: Pixels, size: [usize; 2]) -> ByteImages {
        let Normalization { mean, std } = self.normalization;
        ByteImages { own, partners: None, size, mean, std }
    }

    fn crop(&self, key: SampleKey) -> PaddedCrop {
        let padding = u32::try_from(self.crop_padding).unwrap_or(u32::MAX / 2).min(u32::MAX / 2 - 1);
        let offset = |purpose| key.draw(purpose, 2 * padding + 1) as isize - padding as isize;
        PaddedCrop {
            top: offset(Purpose::CropTop),
            left: offset(Purpose::CropLeft),
            mirrored: self.flip && key.draw(Purpose::Flip, 2) == 1,
        }
    }

    /// A square around a random pixel, clipped at the border.
    fn square(&self, size: [usize; 2], key: SampleKey) -> Rectangle {
        let centre = [(Purpose::CutoutRow, size[0]), (Purpose::CutoutColumn, size[1])];
        let centre = centre.map(|(purpose, length)| key.draw(purpose, length as u32) as usize);
        Rectangle::around(centre, [self.cutout; 2], size)
    }
}

/// The places of `0..length` that are still in it when they are moved by `offset`.
fn visible(offset: isize, length: usize) -> Range<usize> {
    let bound = |at: isize| at.clamp(0, length as isize) as usize;
    bound(-offset)..bound(length as isize - offset)
}

fn moved(place: usize, offset: isize) -> usize {
    (place as isize + offset) as usize
}
