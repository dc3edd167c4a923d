//! Images in memory, as bytes, and the constants that normalise them.
//!
//! A data set of the size Kiln trains on fits in memory as `u8`; keeping it so makes every image one slice, random
//! access free, and a loader's work pure arithmetic. Which images exist is the sources' business, their order the
//! sampler's, their floating-point form the augmentation's.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Colour channels of every image: red, green, blue.
pub const CHANNELS: usize = 3;

/// Labelled images of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSet {
    pixels: Vec<u8>,
    labels: Vec<u32>,
    classes: Vec<String>,
    size: [usize; 2],
}

impl ImageSet {
    /// Takes `pixels` `[n, 3, height, width]`, one of `labels` per image, class names and `size` `[height, width]`.
    ///
    /// # Errors
    /// When the number of bytes is not `n * 3 * height * width`, when an image has no pixel, when there are more images
    /// than a `u32` can count, or when a label has no class.
    pub fn new(pixels: Vec<u8>, labels: Vec<u32>, classes: Vec<String>, size: [usize; 2]) -> Result<Self> {
        let [height, width] = size;
        let expected = labels.len().checked_mul(CHANNELS * height * width);
        if height * width == 0 || expected != Some(pixels.len()) || u32::try_from(labels.len()).is_err() {
            let (bytes, images) = (pixels.len(), labels.len());
            return Err(Error::Data(format!("'{bytes}' bytes cannot be {images} images of 3x{height}x{width} bytes")));
        }
        if let Some(label) = labels.iter().find(|&&label| label as usize >= classes.len()) {
            return Err(Error::Data(format!("label '{label}' names none of the {} classes", classes.len())));
        }
        Ok(Self { pixels, labels, classes, size })
    }

    /// How many images there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// `[height, width]` of every image, in pixels.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// The bytes `[3, height, width]` of image `id`, which is below [`ImageSet::len`].
    pub fn image(&self, id: u32) -> &[u8] {
        let stride = CHANNELS * self.size[0] * self.size[1];
        &self.pixels[id as usize * stride..][..stride]
    }

    /// The class of image `id`, an index into [`ImageSet::classes`].
    pub fn label(&self, id: u32) -> u32 {
        self.labels[id as usize]
    }

    /// The names of the classes, by label.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    fn digest(&self, hash: &mut Sha256) {
        for number in [self.len(), self.classes.len(), self.size[0], self.size[1]] {
            hash.update((number as u64).to_le_bytes());
        }
        self.labels.iter().for_each(|label| hash.update(label.to_le_bytes()));
        hash.update(&self.pixels);
    }
}

/// Mean and standard deviation per channel, of pixels scaled to `0..=1`: a pixel `p` becomes `(p / 255 - mean) / std`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalization {
    /// Mean of red, green, blue.
    pub mean: [f32; CHANNELS],
    /// Standard deviation of red, green, blue.
    pub std: [f32; CHANNELS],
}

impl Normalization {
    /// The usual constants of CIFAR-10's training set.
    pub const CIFAR10: Self = Self { mean: [0.4914, 0.4822, 0.4465], std: [0.2470, 0.2435, 0.2616] };
    /// The usual constants of CIFAR-100's training set.
    pub const CIFAR100: Self = Self { mean: [0.5071, 0.4865, 0.4409], std: [0.2673, 0.2564, 0.2762] };
    /// ImageNet's, the custom for photographs of any origin.
    pub const IMAGENET: Self = Self { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };
}

/// What a run learns from and what it is measured on.
#[derive(Debug, Clone)]
pub struct DataSplits {
    /// Images to learn from.
    pub train: Arc<ImageSet>,
    /// Images to measure on.
    pub validation: Arc<ImageSet>,
    /// How both become numbers.
    pub normalization: Normalization,
}

/// For Burn's own loaders: the bytes `[3, height, width]` of an image and its class.
impl burn_dataset::Dataset<(Vec<u8>, u32)> for ImageSet {
    fn get(&self, index: usize) -> Option<(Vec<u8>, u32)> {
        let id = u32::try_from(index).ok().filter(|_| index < self.len())?;
        Some((self.image(id).to_vec(), self.label(id)))
    }

    fn len(&self) -> usize {
        self.labels.len()
    }
}

/// A short, stable name of the data: 16 hexadecimal digits of a SHA-256 over sizes, labels and pixels of both splits.
///
/// A checkpoint carries it, so that resuming on other data is refused.
pub fn fingerprint(splits: &DataSplits) -> String {
    let mut hash = Sha256::new();
    splits.train.digest(&mut hash);
    splits.validation.digest(&mut hash);
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
