//! Labelled images as bytes, and their normalisation constants.
//!
//! A data set that fits into memory is kept there as `u8`, one slice per image; a larger one stays in its files. The
//! sources fill a set, the sampler orders it, the augmentation converts its images to floating point.

use std::path::PathBuf;
use std::sync::Arc;

use burn_dataset::Dataset;
use kiln_engine::parallel::Foresight;
use kiln_system::{Error, Result};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::decode::to_image;
use super::framing::Framing;
use super::normalization::Normalization;
use super::sample_key::SampleKey;
use super::samples::{Encoded, Need};
pub use kiln_ops::images::CHANNELS;

#[derive(Debug, Clone, PartialEq)]
pub struct ImageSet {
    pixels: Pixels,
    labels: Vec<u32>,
    classes: Vec<String>,
    size: [usize; 2],
    /// The content of the fingerprint in place of the pixels; empty if it hashes the pixels.
    pub(super) identity: Vec<u8>,
    /// The number of the shard of each image; empty if the order of samples does not depend on it.
    pub(super) shards: Vec<u32>,
}

/// Those of `n` images, or of one.
#[derive(Debug, Clone, PartialEq)]
enum Pixels {
    /// `[n, 3, height, width]`.
    InMemory(Vec<u8>),
    /// Decoded at every use; the first of a set, or one.
    Encoded(Encoded),
    /// `[n, 3, height, width]` of another size, framed at every use.
    Framed { pixels: Vec<u8>, from: [usize; 2], framing: Framing },
}

/// One image of a set. It is decoded and framed by [`Picture::shown`], which threads can call in parallel.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    pixels: Pixels,
    /// `[height, width]` in pixels.
    pub size: [usize; 2],
    /// Its class, an index into [`ImageSet::classes`].
    pub label: u32,
}

impl Picture {
    /// Whether it needs no decoding or resizing.
    pub fn is_ready(&self) -> bool {
        matches!(self.pixels, Pixels::InMemory(_))
    }

    /// The bytes `[3, height, width]`; `key` selects the random part if the set shows random parts.
    ///
    /// # Errors
    /// If it cannot be read or is not an image; never for images in memory.
    pub fn shown(self, key: Option<SampleKey>) -> Result<Vec<u8>> {
        let side = self.size[0];
        let fresh = || vec![0; CHANNELS * side * side];
        match self.pixels {
            Pixels::InMemory(bytes) => Ok(bytes),
            Pixels::Framed { pixels, from, framing } => {
                let mut bytes = fresh();
                framing.show(&to_image(&pixels, from), side, key, &mut bytes);
                Ok(bytes)
            }
            Pixels::Encoded(sample) => {
                let mut bytes = fresh();
                sample.show(side, key, &mut bytes).map(|()| bytes)
            }
        }
    }
}

impl ImageSet {
    /// A set of `pixels` `[n, 3, height, width]` with one label per image, class names and `size` `[height, width]`.
    ///
    /// # Errors
    /// [`Error::Data`] if the number of bytes is not `n * 3 * height * width`, if an image has no pixel, if there are
    /// more images than a `u32` can count, or if a label has no class.
    pub fn new(pixels: Vec<u8>, labels: Vec<u32>, classes: Vec<String>, size: [usize; 2]) -> Result<Self> {
        let [height, width] = size;
        let expected = labels.len().checked_mul(CHANNELS * height * width);
        if height * width == 0 || expected != Some(pixels.len()) || u32::try_from(labels.len()).is_err() {
            let (bytes, images) = (pixels.len(), labels.len());
            return Err(Error::Data(format!("'{bytes}' bytes cannot be {images} images of 3x{height}x{width} bytes")));
        }
        let pixels = Pixels::InMemory(pixels);
        Self { pixels, labels, classes, size, identity: Vec::new(), shards: Vec::new() }.checked()
    }

    /// A set of encoded images, of which `first` is the first; `identity` is hashed by the fingerprint.
    pub(super) fn encoded(
        first: Encoded,
        side: usize,
        labels: Vec<u32>,
        classes: Vec<String>,
        identity: Vec<u8>,
    ) -> Result<Self> {
        let pixels = Pixels::Encoded(first);
        Self { pixels, labels, classes, size: [side; 2], identity, shards: Vec::new() }.checked()
    }

    /// Unlabelled image files, framed as squares of `side` pixels.
    pub fn from_files(paths: &[PathBuf], side: usize, framing: Framing) -> Result<Self> {
        let stride = CHANNELS * side * side;
        let mut pixels = vec![0; paths.len() * stride];
        let each = paths.par_iter().zip(pixels.par_chunks_exact_mut(stride));
        let outcomes: Vec<Result<()>> = each.map(|(path, out)| framing.show_file(path, side, None, out)).collect();
        outcomes.into_iter().collect::<Result<()>>()?;
        Self::new(pixels, vec![0; paths.len()], vec!["unknown".into()], [side; 2])
    }

    fn checked(self) -> Result<Self> {
        match self.labels.iter().find(|label| **label as usize >= self.classes.len()) {
            Some(label) => {
                Err(Error::Data(format!("label '{label}' is out of range: there are {} classes", self.classes.len())))
            }
            None => Ok(self),
        }
    }

    /// The same images as squares of `side` pixels. They are framed at every use if they exceed `cache_mb` MiB or if
    /// the framing is random.
    pub fn framed(self, side: usize, framing: Framing, cache_mb: u64) -> Self {
        let from = self.size;
        let unchanged = Framing { interpolation: framing.interpolation, ..Framing::WHOLE };
        if from == [side; 2] && framing == unchanged {
            return self;
        }
        let pixels = match self.pixels {
            Pixels::InMemory(pixels) => pixels,
            pixels => return Self { pixels, ..self },
        };
        let [source, target] = [from[0] * from[1], side * side].map(|area| CHANNELS * area);
        // The fingerprint must not depend on `cache_mb`.
        let identity = Sha256::digest(&pixels).to_vec();
        let has_room = (self.labels.len() * target) as u64 <= cache_mb << 20;
        let pixels = if has_room && !framing.is_random() {
            let mut resized = vec![0; self.labels.len() * target];
            let each = pixels.par_chunks_exact(source).zip(resized.par_chunks_exact_mut(target));
            each.for_each(|(image, out)| framing.show(&to_image(image, from), side, None, out));
            Pixels::InMemory(resized)
        } else {
            Pixels::Framed { pixels, from, framing }
        };
        Self { pixels, size: [side; 2], identity, ..self }
    }

    pub fn bytes(&self) -> usize {
        match &self.pixels {
            Pixels::InMemory(pixels) | Pixels::Framed { pixels, .. } => pixels.len(),
            Pixels::Encoded(_) => 0,
        }
    }

    pub fn len(&self) -> usize {
        self.labels.len()
    }

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
        let pixels = match &self.pixels {
            Pixels::InMemory(pixels) => Pixels::InMemory(of(pixels, self.size)),
            Pixels::Encoded(first) => Pixels::Encoded(first.sample(id as usize)),
            &Pixels::Framed { ref pixels, from, framing } => Pixels::Framed { pixels: of(pixels, from), from, framing },
        };
        Picture { pixels, size: self.size, label: self.label(id) }
    }

    /// The bytes `[3, height, width]` of image `id`, which is below [`ImageSet::len`].
    pub fn image(&self, id: u32) -> Result<Vec<u8>> {
        self.picture(id).shown(None)
    }

    /// Announces which images will be read; see [`Task::foresee`](kiln_engine::parallel::Task::foresee).
    pub fn foresee(&self, needs: impl Iterator<Item = Need> + Send + 'static) -> Option<Foresight> {
        let Pixels::Encoded(first) = &self.pixels else { return None };
        let at = first.at as u32;
        let of_source = move |need: Need| Need { ids: need.ids.into_iter().map(|id| at + id).collect(), ..need };
        first.samples.clone().foresee(Box::new(needs.map(of_source)))
    }

    /// For each image the number of its shard, if the order of samples depends on it.
    pub fn shards(&self) -> &[u32] {
        &self.shards
    }

    /// The class of image `id`, an index into [`ImageSet::classes`].
    pub fn label(&self, id: u32) -> u32 {
        self.labels[id as usize]
    }

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
        self.shards.iter().for_each(|shard| hash.update(shard.to_le_bytes()));
    }
}

#[derive(Debug, Clone)]
pub struct DataSplits {
    pub train: Arc<ImageSet>,
    pub validation: Arc<ImageSet>,
    pub normalization: Normalization,
    /// The larger side of the training images in their files, in pixels, if those that were looked at are all so small
    /// that they are enlarged.
    pub small_side: Option<usize>,
    /// Damaged images that are not among them.
    pub left_out: usize,
    /// Notes for the user about reading them, one line each.
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

/// A fingerprint of the data: 16 hexadecimal digits of a SHA-256 over sizes, labels and pixels of both splits; for
/// encoded images, over their names and lengths in canonical order instead of pixels, wherever they are stored.
///
/// A checkpoint carries it, so that resuming on other data is refused.
pub fn fingerprint(splits: &DataSplits) -> String {
    let mut hash = Sha256::new();
    splits.train.digest(&mut hash);
    splits.validation.digest(&mut hash);
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
