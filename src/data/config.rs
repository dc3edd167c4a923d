//! The `[data]` section of the configuration, documented for users in `config/default.toml` and checked by the config
//! room.

use std::fmt;
use std::path::PathBuf;

use kiln_system::with_defaults;
use serde::{Deserialize, Serialize};

use super::auto_augment::AutoAugment;
use super::interpolation::{Interpolation, TrainInterpolation};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErasingFill {
    /// The data set's mean colour.
    Mean,
    /// A random colour for each rectangle.
    Rand,
    /// A random colour for each pixel.
    Pixel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Corrupt {
    Refuse,
    /// All images are decoded once, before the first run; damaged ones are not part of the data set.
    Skip,
}

/// How to treat the orientation that cameras store with an image (EXIF).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exif {
    /// Images are taken as they are stored, as torchvision does.
    Ignore,
    /// Images are turned upright.
    Apply,
}

impl fmt::Display for Exif {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decode {
    Whole,
    /// The part that is shown, to the same pixels.
    Part,
    /// The same, and shrunk by the decoder if the part has at least twice as many pixels on both sides as what it
    /// becomes.
    Scaled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    Global,
    /// Permuted shards, and a permutation of the samples of every few of them.
    Window,
}

with_defaults! {
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct DataConfig {
        pub source: Source = Source::Cifar10,
        pub dir: PathBuf = PathBuf::from("data"),
        pub download: bool = false,
        pub augment: bool = true,
        pub crop_padding: usize = 4,
        pub resized_crop: f64 = 0.0,
        pub center_crop: f64 = 0.0,
        pub crop_fill: CropFill = CropFill::Mean,
        pub flip: bool = true,
        pub cutout: usize = 0,
        pub rand_augment_ops: usize = 0,
        pub rand_augment_magnitude: u32 = 9,
        #[serde(with = "kiln_system::text")]
        pub auto_augment: AutoAugment = AutoAugment::None,
        pub color_jitter: f64 = 0.0,
        pub hue_jitter: f64 = 0.0,
        pub random_erasing: f64 = 0.0,
        pub erasing_fill: ErasingFill = ErasingFill::Mean,
        pub erasing_count: usize = 1,
        pub mixup: f64 = 0.0,
        pub cutmix: f64 = 0.0,
        pub mix_prob: f64 = 1.0,
        pub repeated_augmentation: usize = 1,
        /// How often a step sees each image; the first of several views is only cropped and mirrored.
        pub views: usize = 1,
        pub erase_first_view: bool = true,
        pub drop_last: bool = false,
        #[serde(with = "kiln_system::text")]
        pub normalization: NormalizationKind = NormalizationKind::Dataset,
        pub image_size: usize = 32,
        /// 0 for `image_size`.
        pub val_image_size: usize = 0,
        pub interpolation: Interpolation = Interpolation::Bilinear,
        pub train_interpolation: TrainInterpolation = TrainInterpolation::Same,
        pub exif: Exif = Exif::Ignore,
        pub decode: Decode = Decode::Whole,
        pub corrupt: Corrupt = Corrupt::Refuse,
        pub image_column: String = String::new(),
        pub label_column: String = String::new(),
        pub order: Order = Order::Global,
        pub window: usize = 16,
        pub cache_dir: PathBuf = PathBuf::new(),
        pub cache_dir_mb: u64 = 65536,
        pub prefetch_mb: u64 = 256,
        pub retry_seconds: f64 = 180.0,
        pub cache_mb: u64 = 4096,
        pub train_size: usize = 2048,
        pub val_size: usize = 512,
    }
}

impl DataConfig {
    /// The side of validation images in pixels.
    pub fn validation_side(&self) -> usize {
        if self.val_image_size == 0 { self.image_size } else { self.val_image_size }
    }
}
