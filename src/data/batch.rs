//! Batches of normalised images in host memory.

use rayon::prelude::*;

use super::augment::Augment;
use super::dataset::{CHANNELS, Picture};
use super::key::Key;
use super::mixing::Mix;
use crate::error::Result;
use crate::parallel::Shard;

/// Minimum of images per thread if they need no decoding.
const FEW: usize = 8;

/// One micro-batch of one replica, in host memory; it may be empty.
#[derive(Debug, Clone, PartialEq)]
pub struct HostBatch {
    /// Normalised pixels `[n, 3, height, width]`.
    pub pixels: Vec<f32>,
    /// The class of each sample.
    pub labels: Vec<u32>,
    /// The id of each sample in its data set.
    pub ids: Vec<u32>,
    /// The classes of the images mixed into them, if any.
    pub partners: Option<Partners>,
    /// `[height, width]`, in pixels.
    pub size: [usize; 2],
}

/// The images mixed into those of a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Partners {
    /// The class of each sample's partner.
    pub labels: Vec<u32>,
    /// The share of each sample's own image, 0 to 1, which is the weight of its own label.
    pub share: f32,
}

impl HostBatch {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// Prepares one batch in parallel: `pictures` are the samples of `shard`, `partners` the images to mix into them, and
/// how; `seed` is the experiment's.
///
/// # Errors
/// [`crate::error::Error::Data`] or an I/O error if an image file cannot be read or decoded.
pub fn assemble(
    pictures: Vec<Picture>,
    partners: Option<(Vec<Picture>, Mix)>,
    augment: &Augment,
    seed: u64,
    shard: &Shard,
) -> Result<HostBatch> {
    let size = pictures.first().map_or([0; 2], Picture::size);
    let stride = CHANNELS * size[0] * size[1];
    let labels = |pictures: &[Picture]| pictures.iter().map(Picture::label).collect();
    // An image in memory is little work; decoding one is worth a thread.
    let least = if pictures.iter().all(Picture::is_ready) { FEW } else { 1 };
    let show = |picture: Picture, sample: u32, copy: Option<&u32>, out: &mut [f32]| -> Result<()> {
        let key = Key { seed, epoch: shard.epoch, sample }.copy(copy.copied().unwrap_or(0));
        augment.apply(&picture.shown(Some(key))?, size, key, out);
        Ok(())
    };
    let (own, mut pixels) = (labels(&pictures), vec![0.0; pictures.len() * stride]);
    let each = pixels.par_chunks_exact_mut(stride.max(1)).with_min_len(least).zip(pictures).enumerate();
    each.try_for_each(|(i, (out, picture))| show(picture, shard.ids[i], shard.copies.get(i), out))?;
    let mut mixed = None;
    if let Some((pictures, mix)) = partners {
        mixed = Some(Partners { labels: labels(&pictures), share: mix.share(size) });
        let each = pixels.par_chunks_exact_mut(stride.max(1)).with_min_len(least).zip(pictures).enumerate();
        each.try_for_each(|(i, (out, picture))| -> Result<()> {
            let mut partner = vec![0.0; stride];
            show(picture, shard.partners[i], shard.partner_copies.get(i), &mut partner)?;
            mix.apply(out, &partner, size);
            Ok(())
        })?;
    }
    Ok(HostBatch { pixels, labels: own, ids: shard.ids.clone(), partners: mixed, size })
}
