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
    /// A folder per class of JPEG, PNG, BMP and WebP files, below `train` and below `val` or `test`.
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

/// Which constants bring pixels to mean 0 and deviation 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormalizationKind {
    /// The data set's own.
    Dataset,
    /// ImageNet's, which torchvision's weights were trained with.
    Imagenet,
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
    /// Whether training images are varied at all; `false` switches everything from crop to cutmix off.
    pub augment: bool,
    /// Padding on each side before the random crop, in pixels; 0 = no crop. Where `resized_crop` is on there is none.
    pub crop_padding: usize,
    /// Least share of a training image's area that a random part covers, which is then resized, 0 to 1; 0 = off.
    pub resized_crop: f64,
    /// Side of the middle square that is shown of an image, as a share of its shorter side; 0 = the whole image, squeezed.
    pub center_crop: f64,
    /// What the padding consists of.
    pub crop_fill: CropFill,
    /// Whether half of the training images are mirrored left to right.
    pub flip: bool,
    /// Side of the square that cutout blanks, in pixels; 0 = off.
    pub cutout: usize,
    /// Operations of RandAugment per training image; 0 = off.
    pub rand_augment_ops: usize,
    /// Their strength, 0 to 30.
    pub rand_augment_magnitude: u32,
    /// Probability that random erasing blanks a rectangle of a training image, 0 to 1.
    pub random_erasing: f64,
    /// Mixup blends two images with a share from Beta(alpha, alpha); this is alpha, 0 = off.
    pub mixup: f64,
    /// Cutmix pastes a part of one image into another, with a share from Beta(alpha, alpha); 0 = off.
    pub cutmix: f64,
    /// Probability that a micro-batch is mixed where mixup or cutmix is on, 0 to 1.
    pub mix_prob: f64,
    /// How often a training image stands in its micro-batch, each time varied anew; an epoch shows so many fewer. 1 = off.
    pub repeated_augmentation: usize,
    /// Whether an epoch skips its last micro-batch when that one is short.
    pub drop_last: bool,
    /// Which constants normalise the pixels.
    pub normalization: NormalizationKind,
    /// Height and width of the images that the model sees, in pixels.
    pub image_size: usize,
    /// MiB of decoded or resized images that are kept in memory; more of them are made whenever they are needed.
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
            random_erasing: 0.0,
            mixup: 0.0,
            cutmix: 0.0,
            mix_prob: 1.0,
            repeated_augmentation: 1,
            drop_last: false,
            normalization: NormalizationKind::Dataset,
            image_size: 32,
            cache_mb: 4096,
            train_size: 2048,
            val_size: 512,
        }
    }
}
