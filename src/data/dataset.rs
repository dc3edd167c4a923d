//! Images as bytes, and the constants that normalise them.
//!
//! A data set that fits in memory is kept there as `u8`: every image is one slice, random access is free, and a loader's
//! work pure arithmetic. One that does not stays in its files. Which images exist is the sources' business, their order
//! the sampler's, their floating-point form the augmentation's.

use std::path::PathBuf;
use std::sync::Arc;

use burn_dataset::Dataset;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::decode::to_image;
use super::framing::Framing;
use super::key::Key;
use crate::error::{Error, Result};

/// Colour channels of every image: red, green, blue.
pub const CHANNELS: usize = 3;

/// Labelled images of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSet {
    pixels: Pixels,
    labels: Vec<u32>,
    classes: Vec<String>,
    size: [usize; 2],
    /// What the fingerprint tells the images by; empty where it is their pixels.
    identity: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq)]
enum Pixels {
    /// `[n, 3, height, width]`.
    InMemory(Vec<u8>),
    OnDisk(ImageFiles),
    /// `[n, 3, height, width]` of another size, made squares whenever they are needed.
    Framed {
        pixels: Vec<u8>,
        from: [usize; 2],
        framing: Framing,
    },
}

/// Image files that are decoded whenever they are needed, and made squares of `side` pixels.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ImageFiles {
    pub(super) paths: Vec<PathBuf>,
    pub(super) side: usize,
    pub(super) framing: Framing,
}

/// One image of a set. What has to be decoded or made a square is when it is shown, so that threads can share the work.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    form: Form,
    size: [usize; 2],
    label: u32,
}

#[derive(Debug, Clone, PartialEq)]
enum Form {
    /// `[3, height, width]`.
    Ready(Vec<u8>),
    /// `[3, height, width]` of another size.
    Framed(Vec<u8>, [usize; 2], Framing),
    File(PathBuf, Framing),
}

impl Picture {
    /// `[height, width]` in pixels.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Its class, an index into [`ImageSet::classes`].
    pub fn label(&self) -> u32 {
        self.label
    }

    /// Whether it is shown without being decoded or resized.
    pub fn is_ready(&self) -> bool {
        matches!(self.form, Form::Ready(_))
    }

    /// The bytes `[3, height, width]`; of a set whose images look otherwise every time, as they look for `key`.
    ///
    /// # Errors
    /// When its file cannot be read or is no image; never for images in memory.
    pub fn shown(self, key: Option<Key>) -> Result<Vec<u8>> {
        let side = self.size[0];
        let fresh = || vec![0; CHANNELS * side * side];
        match self.form {
            Form::Ready(bytes) => Ok(bytes),
            Form::Framed(planes, from, framing) => {
                let mut bytes = fresh();
                framing.show(to_image(&planes, from), side, key, &mut bytes);
                Ok(bytes)
            }
            Form::File(path, framing) => {
                let mut bytes = fresh();
                framing.show_file(&path, side, key, &mut bytes).map(|()| bytes)
            }
        }
    }
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
        Self { pixels: Pixels::InMemory(pixels), labels, classes, size, identity: Vec::new() }.checked()
    }

    /// One file for each of `labels`; `identity` tells them from other files.
    pub(super) fn on_disk(
        files: ImageFiles,
        labels: Vec<u32>,
        classes: Vec<String>,
        identity: Vec<u8>,
    ) -> Result<Self> {
        let size = [files.side; 2];
        Self { pixels: Pixels::OnDisk(files), labels, classes, size, identity }.checked()
    }

    /// Image files that nobody labelled, made squares of `side` pixels as `framing` says.
    ///
    /// # Errors
    /// When one cannot be read or is no image.
    pub fn from_files(paths: &[PathBuf], side: usize, framing: Framing) -> Result<Self> {
        let stride = CHANNELS * side * side;
        let mut pixels = vec![0; paths.len() * stride];
        let each = paths.par_iter().zip(pixels.par_chunks_exact_mut(stride));
        let outcomes: Vec<Result<()>> = each.map(|(path, out)| framing.show_file(path, side, None, out)).collect();
        outcomes.into_iter().collect::<Result<()>>()?;
        Self::new(pixels, vec![0; paths.len()], vec!["unknown".into()], [side; 2])
    }

    /// The same images, told from others by `identity` and not by their pixels.
    pub(super) fn with_identity(self, identity: Vec<u8>) -> Self {
        Self { identity, ..self }
    }

    fn checked(self) -> Result<Self> {
        match self.labels.iter().find(|label| **label as usize >= self.classes.len()) {
            Some(label) => {
                Err(Error::Data(format!("label '{label}' is out of range: there are {} classes", self.classes.len())))
            }
            None => Ok(self),
        }
    }

    /// The same images as squares of `side` pixels. Each is made when it is needed if more than `cache_mb` MiB would come
    /// together, or if it looks otherwise every time.
    pub fn framed(self, side: usize, framing: Framing, cache_mb: u64) -> Self {
        let from = self.size;
        if from == [side; 2] && framing == Framing::WHOLE {
            return self;
        }
        let pixels = match self.pixels {
            Pixels::InMemory(pixels) => pixels,
            pixels => return Self { pixels, ..self },
        };
        let [source, target] = [from[0] * from[1], side * side].map(|area| CHANNELS * area);
        // A fingerprint must not depend on whether there was memory for the larger images.
        let identity = Sha256::digest(&pixels).to_vec();
        let has_room = (self.labels.len() * target) as u64 <= cache_mb << 20;
        let pixels = if has_room && !framing.is_random() {
            let mut resized = vec![0; self.labels.len() * target];
            let each = pixels.par_chunks_exact(source).zip(resized.par_chunks_exact_mut(target));
            each.for_each(|(image, out)| framing.show(to_image(image, from), side, None, out));
            Pixels::InMemory(resized)
        } else {
            Pixels::Framed { pixels, from, framing }
        };
        Self { pixels, size: [side; 2], identity, ..self }
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

    /// Image `id`, which is below [`ImageSet::len`].
    pub fn picture(&self, id: u32) -> Picture {
        let of = |pixels: &[u8], size: [usize; 2]| {
            let length = CHANNELS * size[0] * size[1];
            pixels[id as usize * length..][..length].to_vec()
        };
        let form = match &self.pixels {
            Pixels::InMemory(pixels) => Form::Ready(of(pixels, self.size)),
            Pixels::OnDisk(files) => Form::File(files.paths[id as usize].clone(), files.framing),
            Pixels::Framed { pixels, from, framing } => Form::Framed(of(pixels, *from), *from, *framing),
        };
        Picture { form, size: self.size, label: self.label(id) }
    }

    /// The bytes `[3, height, width]` of image `id`, which is below [`ImageSet::len`].
    ///
    /// # Errors
    /// When its file cannot be read or is no image; never for images in memory.
    pub fn image(&self, id: u32) -> Result<Vec<u8>> {
        self.picture(id).shown(None)
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
        match &self.pixels {
            Pixels::InMemory(pixels) if self.identity.is_empty() => hash.update(pixels),
            _ => hash.update(&self.identity),
        }
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
    /// What a person should know of how they were read, one line each.
    pub notes: Vec<String>,
}

impl Dataset<Picture> for ImageSet {
    fn get(&self, index: usize) -> Option<Picture> {
        u32::try_from(index).ok().filter(|_| index < self.len()).map(|id| self.picture(id))
    }

    fn len(&self) -> usize {
        self.labels.len()
    }
}

/// A short, stable name of the data: 16 hexadecimal digits of a SHA-256 over sizes, labels and pixels of both splits; for
/// image files, over their names and lengths.
///
/// A checkpoint carries it, so that resuming on other data is refused.
pub fn fingerprint(splits: &DataSplits) -> String {
    let mut hash = Sha256::new();
    splits.train.digest(&mut hash);
    splits.validation.digest(&mut hash);
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
