//! Augmentation of one image.
//!
//! The steps after `framing`: RandAugment or another policy, and colour jitter on the bytes; random crop of the padded
//! image and horizontal flip, which copy each row; cutout and random erasing, which name areas that become 0 after
//! normalisation.
//! Random numbers are drawn by [`SampleKey`], so the result depends on seed, epoch and sample only.

use std::ops::Range;

use kiln_ops::images::VisibleAreas;

use super::auto_augment::{AutoAugment, rand_augment};
use super::color_jitter::ColorJitter;
use super::config::{CropFill, DataConfig};
use super::erase::RandomErasing;
use super::normalization::Normalization;
use super::rectangle::Rectangle;
use super::sample_key::{Purpose, SampleKey};

#[derive(Debug, Clone)]
pub struct Augment {
    /// What is done to training images; `None` if they are only normalised.
    config: Option<DataConfig>,
    /// How often a step sees each image: of several views, the first one is only cropped and mirrored.
    pub views: usize,
    pub normalization: Normalization,
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
        if !config.augment {
            return Self::plain(normalization);
        }
        Self { config: Some(config.clone()), views: config.views, normalization }
    }

    /// Normalisation only, for validation images.
    pub fn plain(normalization: Normalization) -> Self {
        Self { config: None, views: 1, normalization }
    }

    /// Writes view `nth` of `image` `[3, height, width]` with `size` `[height, width]` to `out`, of the same shape;
    /// returns which of its pixels have a value. All views of an image have one crop, and draws of their own for the
    /// rest.
    ///
    /// Cutout's square is the mean, 0 after normalisation (DeVries and Taylor, 2017).
    pub fn apply_view(
        &self,
        nth: usize,
        image: &[u8],
        size: [usize; 2],
        key: SampleKey,
        out: &mut [u8],
    ) -> VisibleAreas {
        let [height, width] = size;
        let whole = Rectangle { rows: 0..height, columns: 0..width };
        let Some(config) = &self.config else {
            out.copy_from_slice(image);
            return [whole.bounds(), [0; 4], [0; 4]];
        };
        let (crop, key) = (PaddedCrop::draw(config, key), key.view(nth as u32));
        let is_clean = self.views > 1 && nth == 0;
        let varied = if is_clean { None } else { self.varied(config, image, size, key) };
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
        let inside = if config.crop_fill == CropFill::Mean { Rectangle { rows, columns } } else { whole };
        let square = (config.cutout > 0 && !is_clean).then(|| square(config.cutout, size, key));
        let (probability, count) = (config.random_erasing, config.erasing_count);
        let erasing = RandomErasing { probability, fill: config.erasing_fill, count };
        let spared = is_clean && !config.erase_first_view;
        let mut erased = if spared { Vec::new() } else { erasing.draw(size, key) };
        if erasing.is_written() {
            erasing.write(&erased, out, width, self.normalization, key);
            erased.clear();
        }
        [Some(inside), square, erased.pop()].map(|area| area.map_or([0; 4], |area| area.bounds()))
    }

    /// The image after RandAugment or another policy and colour jitter, if there are any.
    fn varied(&self, config: &DataConfig, image: &[u8], size: [usize; 2], key: SampleKey) -> Option<Vec<u8>> {
        let mut varied = None;
        for step in rand_augment(config.rand_augment_ops, config.rand_augment_magnitude, size, key) {
            step.perform(varied.get_or_insert_with(|| image.to_vec()), size);
        }
        if config.auto_augment != AutoAugment::None {
            let mean = self.normalization.mean.map(|mean| (255.0 * mean).round() as u8);
            let (image, interpolation) = (varied.as_deref().unwrap_or(image), config.train_interpolation.fixed(None));
            varied = Some(config.auto_augment.apply(image, size, mean, interpolation, key));
        }
        let (strength, hue) = (config.color_jitter, config.hue_jitter);
        if strength > 0.0 || hue > 0.0 {
            ColorJitter { strength, hue }.apply(varied.get_or_insert_with(|| image.to_vec()), size, key);
        }
        varied
    }
}

impl PaddedCrop {
    fn draw(config: &DataConfig, key: SampleKey) -> Self {
        let padding = if config.resized_crop > 0.0 { 0 } else { config.crop_padding };
        let padding = u32::try_from(padding).unwrap_or(u32::MAX / 2).min(u32::MAX / 2 - 1);
        let offset = |purpose| key.draw(purpose, 2 * padding + 1) as isize - padding as isize;
        Self {
            top: offset(Purpose::CropTop),
            left: offset(Purpose::CropLeft),
            mirrored: config.flip && key.draw(Purpose::Flip, 2) == 1,
        }
    }
}

/// A square around a random pixel, clipped at the border.
fn square(side: usize, size: [usize; 2], key: SampleKey) -> Rectangle {
    let centre = [(Purpose::CutoutRow, size[0]), (Purpose::CutoutColumn, size[1])];
    let centre = centre.map(|(purpose, length)| key.draw(purpose, length as u32) as usize);
    Rectangle::around(centre, [side; 2], size)
}

/// The places of `0..length` that are still in it when they are moved by `offset`.
fn visible(offset: isize, length: usize) -> Range<usize> {
    let bound = |at: isize| at.clamp(0, length as isize) as usize;
    bound(-offset)..bound(length as isize - offset)
}

fn moved(place: usize, offset: isize) -> usize {
    (place as isize + offset) as usize
}
