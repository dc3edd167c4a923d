//! The `[data]` section of the configuration, documented for users in `config/default.toml` and checked by the config
//! room.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::normalization::NormalizationKind;

/// The source of the images.
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
    /// Shapes drawn by a program; needs no files.
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

/// What becomes of damaged images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Corrupt {
    /// They end the run.
    #[default]
    Refuse,
    /// All images are decoded once, before the first run; damaged ones are not part of the data set.
    Skip,
}

/// What becomes of the orientation that cameras store beside an image (EXIF).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Exif {
    /// Images are taken as they are stored, as torchvision does.
    #[default]
    Ignore,
    /// Images are turned upright.
    Apply,
}

impl Exif {
    /// As in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignore => "ignore",
            Self::Apply => "apply",
        }
    }
}

/// How JPEGs are decoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decode {
    /// All of the image.
    #[default]
    Whole,
    /// The part that is shown, to the same pixels.
    Part,
    /// The same, and shrunk by the decoder if the part has at least twice as many pixels on both sides as what it becomes.
    Scaled,
}

/// The order of training samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// A permutation of all samples.
    #[default]
    Global,
    /// Permuted shards, and a permutation of the samples of every few of them.
    Window,
}

// What older runs, which lack these keys, are read with.
const fn window() -> usize {
    16
}

const fn cache_dir_mb() -> u64 {
    65536
}

const fn prefetch_mb() -> u64 {
    256
}

const fn retry_seconds() -> f64 {
    180.0
}

/// The `[data]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataConfig {
    /// The source of the images.
    pub source: Source,
    /// Their folder, a pattern for the names of shards, or a pack; not used by `source = synthetic`.
    pub dir: PathBuf,
    /// Whether to fetch a CIFAR archive that is missing in `dir`.
    pub download: bool,
    /// Whether training images are augmented; `false` switches everything from crop to CutMix off.
    pub augment: bool,
    /// Padding on each side before the random crop, in pixels; 0 = no crop. Ignored if `resized_crop` is on.
    pub crop_padding: usize,
    /// Smallest share of a training image's area in a random resized crop, 0 to 1; 0 = off.
    pub resized_crop: f64,
    /// Side of the central square, as a share of the image's shorter side; 0 = the whole image, squeezed.
    pub center_crop: f64,
    /// The colour of the padding.
    pub crop_fill: CropFill,
    /// Whether half of the training images are mirrored left to right.
    pub flip: bool,
    /// Side of the square that cutout blanks, in pixels; 0 = off.
    pub cutout: usize,
    /// Operations of RandAugment per training image; 0 = off.
    pub rand_augment_ops: usize,
    /// Their strength, 0 to 30.
    pub rand_augment_magnitude: u32,
    /// How far brightness, contrast and saturation of training images vary, 0 to 1; 0 = off.
    #[serde(default)]
    pub color_jitter: f64,
    /// How far their hue varies, as a share of the circle of colours, 0 to 0.5; 0 = off.
    #[serde(default)]
    pub hue_jitter: f64,
    /// Probability that random erasing blanks a rectangle of a training image, 0 to 1.
    pub random_erasing: f64,
    /// Mixup blends two images with a share from Beta(alpha, alpha); this is alpha, 0 = off.
    pub mixup: f64,
    /// CutMix pastes a part of one image into another, with a share from Beta(alpha, alpha); 0 = off.
    pub cutmix: f64,
    /// Probability that a micro-batch is mixed if mixup or CutMix is on, 0 to 1.
    pub mix_prob: f64,
    /// Copies of each training image in its micro-batch, each augmented anew; an epoch has that many times fewer
    /// images. 1 = off.
    pub repeated_augmentation: usize,
    /// Whether an epoch skips its last micro-batch if that is incomplete.
    pub drop_last: bool,
    /// The constants that normalise the pixels.
    pub normalization: NormalizationKind,
    /// Height and width of the model's input, in pixels.
    pub image_size: usize,
    /// What becomes of the orientation stored beside an image.
    #[serde(default)]
    pub exif: Exif,
    /// How JPEGs are decoded.
    #[serde(default)]
    pub decode: Decode,
    /// What becomes of damaged images in files, shards and packs.
    #[serde(default)]
    pub corrupt: Corrupt,
    /// The column of images in Parquet files; empty: the first of the usual names.
    #[serde(default)]
    pub image_column: String,
    /// The column of classes in Parquet files; empty: the first of the usual names.
    #[serde(default)]
    pub label_column: String,
    /// The order of training samples.
    #[serde(default)]
    pub order: Order,
    /// Shards that `order = window` mixes with one another, at least 1.
    #[serde(default = "window")]
    pub window: usize,
    /// Folder for samples of an object store; empty: they are fetched in every epoch.
    #[serde(default)]
    pub cache_dir: PathBuf,
    /// MiB of disk that they may take.
    #[serde(default = "cache_dir_mb")]
    pub cache_dir_mb: u64,
    /// MiB of memory for samples that are fetched from an object store before they are needed.
    #[serde(default = "prefetch_mb")]
    pub prefetch_mb: u64,
    /// Seconds for which a request to an object store is repeated.
    #[serde(default = "retry_seconds")]
    pub retry_seconds: f64,
    /// MiB of memory for decoded or resized images; a larger set is decoded again in every epoch.
    pub cache_mb: u64,
    /// Training images that `source = synthetic` draws.
    pub train_size: usize,
    /// Validation images that `source = synthetic` draws.
    pub val_size: usize,
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
            color_jitter: 0.0,
            hue_jitter: 0.0,
            random_erasing: 0.0,
            mixup: 0.0,
            cutmix: 0.0,
            mix_prob: 1.0,
            repeated_augmentation: 1,
            drop_last: false,
            normalization: NormalizationKind::Dataset,
            image_size: 32,
            exif: Exif::Ignore,
            decode: Decode::Whole,
            corrupt: Corrupt::Refuse,
            image_column: String::new(),
            label_column: String::new(),
            order: Order::Global,
            window: window(),
            cache_dir: PathBuf::new(),
            cache_dir_mb: cache_dir_mb(),
            prefetch_mb: prefetch_mb(),
            retry_seconds: retry_seconds(),
            cache_mb: 4096,
            train_size: 2048,
            val_size: 512,
        }
    }
}
