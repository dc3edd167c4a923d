//! The `[data]` section of the configuration, documented for users in `config/default.toml` and checked by the config
//! room.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::auto_augment::AutoAugment;
use super::normalization::NormalizationKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// CIFAR-10: 60,000 colour images of 32x32 pixels in ten classes (Krizhevsky, 2009).
    Cifar10,
    /// CIFAR-100: the same format with one hundred (fine) classes.
    Cifar100,
    /// A folder per class of JPEG, PNG, BMP and WebP files, below `train` and below `val` or `test`.
    Folder,
    /// Tar shards in the layout of WebDataset.
    Webdataset,
    /// Parquet files as on the Hugging Face hub.
    Parquet,
    /// The file that `train pack` writes.
    Pack,
    Synthetic,
}

impl Source {
    /// Whether these are the user's own images, of any size: by default they are taken for photographs.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Folder | Self::Webdataset | Self::Parquet | Self::Pack)
    }
}

/// The padding around an image before the random crop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CropFill {
    /// The data set's mean colour: zero after normalisation.
    Mean,
    /// Black pixels: zero before normalisation, as torchvision's `RandomCrop` pads an image.
    Black,
}

/// What random erasing writes; normal numbers count after normalisation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErasingFill {
    /// The data set's mean colour.
    #[default]
    Mean,
    /// A random colour for each rectangle.
    Rand,
    /// A random colour for each pixel.
    Pixel,
}

/// How images are resized, each as by Pillow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    #[default]
    Bilinear,
    Bicubic,
    Nearest,
}

impl fmt::Display for Interpolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Corrupt {
    #[default]
    Refuse,
    /// All images are decoded once, before the first run; damaged ones are not part of the data set.
    Skip,
}

/// How to treat the orientation that cameras store with an image (EXIF).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exif {
    /// Images are taken as they are stored, as torchvision does.
    #[default]
    Ignore,
    /// Images are turned upright.
    Apply,
}

impl fmt::Display for Exif {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decode {
    #[default]
    Whole,
    /// The part that is shown, to the same pixels.
    Part,
    /// The same, and shrunk by the decoder if the part has at least twice as many pixels on both sides as what it
    /// becomes.
    Scaled,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    #[default]
    Global,
    /// Permuted shards, and a permutation of the samples of every few of them.
    Window,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataConfig {
    pub source: Source,
    pub dir: PathBuf,
    pub download: bool,
    pub augment: bool,
    pub crop_padding: usize,
    pub resized_crop: f64,
    pub center_crop: f64,
    pub crop_fill: CropFill,
    pub flip: bool,
    pub cutout: usize,
    pub rand_augment_ops: usize,
    pub rand_augment_magnitude: u32,
    pub auto_augment: AutoAugment,
    pub color_jitter: f64,
    pub hue_jitter: f64,
    pub random_erasing: f64,
    pub erasing_fill: ErasingFill,
    pub erasing_count: usize,
    pub mixup: f64,
    pub cutmix: f64,
    pub mix_prob: f64,
    pub repeated_augmentation: usize,
    /// How often a step sees each image; the first of several views is only cropped and mirrored.
    pub views: usize,
    pub erase_first_view: bool,
    pub drop_last: bool,
    pub normalization: NormalizationKind,
    pub image_size: usize,
    /// 0 for `image_size`.
    pub val_image_size: usize,
    pub interpolation: Interpolation,
    pub exif: Exif,
    pub decode: Decode,
    pub corrupt: Corrupt,
    pub image_column: String,
    pub label_column: String,
    pub order: Order,
    pub window: usize,
    pub cache_dir: PathBuf,
    pub cache_dir_mb: u64,
    pub prefetch_mb: u64,
    pub retry_seconds: f64,
    pub cache_mb: u64,
    pub train_size: usize,
    pub val_size: usize,
}

impl DataConfig {
    /// The side of validation images in pixels.
    pub fn validation_side(&self) -> usize {
        if self.val_image_size == 0 { self.image_size } else { self.val_image_size }
    }
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            source: Source::Cifar10,
            dir: PathBuf::from("data"),
            download: false,
            augment: true,
            crop_padding: 4,
            resized_crop: 0.0,
            center_crop: 0.0,
            crop_fill: CropFill::Mean,
            flip: true,
            cutout: 0,
            rand_augment_ops: 0,
            rand_augment_magnitude: 9,
            auto_augment: AutoAugment::None,
            color_jitter: 0.0,
            hue_jitter: 0.0,
            random_erasing: 0.0,
            erasing_fill: ErasingFill::Mean,
            erasing_count: 1,
            mixup: 0.0,
            cutmix: 0.0,
            mix_prob: 1.0,
            repeated_augmentation: 1,
            views: 1,
            erase_first_view: true,
            drop_last: false,
            normalization: NormalizationKind::Dataset,
            image_size: 32,
            val_image_size: 0,
            interpolation: Interpolation::Bilinear,
            exif: Exif::Ignore,
            decode: Decode::Whole,
            corrupt: Corrupt::Refuse,
            image_column: String::new(),
            label_column: String::new(),
            order: Order::Global,
            window: 16,
            cache_dir: PathBuf::new(),
            cache_dir_mb: 65536,
            prefetch_mb: 256,
            retry_seconds: 180.0,
            cache_mb: 4096,
            train_size: 2048,
            val_size: 512,
        }
    }
}
