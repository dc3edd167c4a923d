//! What runs in the data room: which images, from where, and how training images are varied.
//!
//! Plain values, no options: the config room reads layers, fills in defaults and checks ranges before it builds one of
//! these. What a value means for the images is decided by the file that uses it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the images come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// CIFAR-10: 60,000 colour images of 32x32 pixels in ten classes (Krizhevsky, 2009).
    Cifar10,
    /// CIFAR-100: the same format with one hundred (fine) classes.
    Cifar100,
    /// A folder per class of JPEG and PNG files, below `train` and below `val` or `test`.
    Folder,
    /// Shapes drawn by a program; needs no files.
    Synthetic,
}

/// What surrounds an image before the random crop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CropFill {
    /// The data set's mean colour: zero after normalisation.
    Mean,
    /// Black pixels: zero before normalisation, as torchvision's `RandomCrop` pads an image.
    Black,
}

/// The `[data]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataConfig {
    /// Where the images come from.
    pub source: Source,
    /// The folder that holds them; `source = synthetic` reads nothing.
    pub dir: PathBuf,
    /// Whether a CIFAR archive that `dir` lacks is fetched.
    pub download: bool,
    /// Whether training images are varied at all; `false` switches crop, flip and cutout off.
    pub augment: bool,
    /// Padding on each side before the random crop, in pixels; 0 = no crop.
    pub crop_padding: usize,
    /// What the padding consists of.
    pub crop_fill: CropFill,
    /// Whether half of the training images are mirrored left to right.
    pub flip: bool,
    /// Side of the square that cutout blanks, in pixels; 0 = off.
    pub cutout: usize,
    /// Whether an epoch skips its last micro-batch when that one is short.
    pub drop_last: bool,
    /// Height and width to which `source = folder` resizes, in pixels.
    pub image_size: usize,
    /// MiB of decoded images that `source = folder` keeps in memory; more of them are decoded whenever they are needed.
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
            crop_fill: CropFill::Mean,
            flip: true,
            cutout: 0,
            drop_last: false,
            image_size: 32,
            cache_mb: 4096,
            train_size: 2048,
            val_size: 512,
        }
    }
}
