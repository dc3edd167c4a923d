//! Augmentation and normalisation of one image.
//!
//! The steps after `framing`: RandAugment on the bytes; random crop of the padded image, horizontal flip and
//! normalisation in one pass; cutout; random erasing. In that pass each output row is a part of a source row, mapped by
//! a table of 256 values per channel. Random numbers are drawn by [`Key`], so the result depends on seed, epoch and
//! sample only.

use super::config::{CropFill, DataConfig};
use super::dataset::{CHANNELS, Normalization};
use super::erase::RandomErasing;
use super::key::{Key, Purpose};
use super::rand_augment::RandAugment;
use super::rectangle::Rectangle;

/// The augmentation and normalisation of images.
#[derive(Debug, Clone)]
pub struct Augment {
    rand_augment: Option<RandAugment>,
    crop_padding: usize,
    crop_fill: CropFill,
    flip: bool,
    cutout: usize,
    erasing: Option<RandomErasing>,
    table: Box<[[f32; 256]; CHANNELS]>,
}

/// The random crop of the padded image: an offset in whole pixels, and whether it is mirrored.
#[derive(Debug, Clone, Copy)]
struct View {
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
        let DataConfig { crop_fill, flip, cutout, .. } = *config;
        let crop_padding = if config.resized_crop > 0.0 { 0 } else { config.crop_padding };
        let (ops, magnitude, probability) =
            (config.rand_augment_ops, config.rand_augment_magnitude, config.random_erasing);
        let rand_augment = (ops > 0).then_some(RandAugment { ops, magnitude, fill: [0; CHANNELS] });
        let erasing = (probability > 0.0).then_some(RandomErasing { probability });
        Self { rand_augment, crop_padding, crop_fill, flip, cutout, erasing, ..plain }
    }

    /// Normalisation only, for validation images.
    pub fn plain(normalization: Normalization) -> Self {
        let mut table = Box::new([[0.0; 256]; CHANNELS]);
        for (channel, row) in table.iter_mut().enumerate() {
            for (byte, value) in row.iter_mut().enumerate() {
                *value = (byte as f32 / 255.0 - normalization.mean[channel]) / normalization.std[channel];
            }
        }
        let (rand_augment, erasing) = (None, None);
        Self { rand_augment, crop_padding: 0, crop_fill: CropFill::Mean, flip: false, cutout: 0, erasing, table }
    }

    /// Writes `image` `[3, height, width]` with `size` `[height, width]` to `out`, of the same shape.
    ///
    /// Cutout's square is the mean, 0 after normalisation (DeVries and Taylor, 2017).
    pub fn apply(&self, image: &[u8], size: [usize; 2], key: Key, out: &mut [f32]) {
        let [height, width] = size;
        let view = self.view(key);
        let varied = self.rand_augment.map(|it| it.apply(image, size, key));
        let image = varied.as_deref().unwrap_or(image);
        let planes = image.chunks_exact(height * width).zip(out.chunks_exact_mut(height * width));
        for ((source, target), table) in planes.zip(self.table.iter()) {
            let fill = if self.crop_fill == CropFill::Black { table[0] } else { 0.0 };
            for (row, target) in target.chunks_exact_mut(width).enumerate() {
                match view.top.checked_add_unsigned(row).and_then(|row| usize::try_from(row).ok()) {
                    Some(row) if row < height => view.copy_row(&source[row * width..][..width], table, fill, target),
                    _ => target.fill(fill),
                }
            }
        }
        if self.cutout > 0 {
            self.square(size, key).blank(out, size);
        }
        if let Some(erasing) = self.erasing {
            erasing.apply(out, size, key);
        }
    }

    fn view(&self, key: Key) -> View {
        let padding = u32::try_from(self.crop_padding).unwrap_or(u32::MAX / 2).min(u32::MAX / 2 - 1);
        let offset = |purpose| key.draw(purpose, 2 * padding + 1) as isize - padding as isize;
        View {
            top: offset(Purpose::CropTop),
            left: offset(Purpose::CropLeft),
            mirrored: self.flip && key.draw(Purpose::Flip, 2) == 1,
        }
    }

    /// A square around a random pixel, clipped at the border.
    fn square(&self, size: [usize; 2], key: Key) -> Rectangle {
        let centre = [(Purpose::CutoutRow, size[0]), (Purpose::CutoutColumn, size[1])];
        let centre = centre.map(|(purpose, length)| key.draw(purpose, length as u32) as usize);
        Rectangle::around(centre, [self.cutout; 2], size)
    }
}

impl View {
    /// Fills one output row from one source row: padding, the visible part, padding.
    fn copy_row(self, source: &[u8], table: &[f32; 256], fill: f32, target: &mut [f32]) {
        let width = source.len() as isize;
        let start = (-self.left).clamp(0, width) as usize;
        let end = (width - self.left).clamp(0, width) as usize;
        let from = self.left.clamp(0, width) as usize;
        target[..start].fill(fill);
        target[end..].fill(fill);
        for (value, byte) in target[start..end].iter_mut().zip(&source[from..]) {
            *value = table[usize::from(*byte)];
        }
        if self.mirrored {
            target.reverse();
        }
    }
}
