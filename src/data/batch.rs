//! Batches of images in host memory.

use kiln_engine::parallel::Shard;
use kiln_ops::images::{self, ByteImages, MixBy, Pixels, VisibleAreas};
use kiln_system::Result;
use rayon::prelude::*;

use super::augment::Augment;
use super::dataset::{CHANNELS, Picture};
use super::mixing::own_share;
use super::normalization::Normalization;
use super::sample_key::SampleKey;

/// Minimum of images per thread if they need no decoding.
const FEW: usize = 8;

/// One micro-batch of one replica, in host memory; it may be empty.
#[derive(Debug, Clone, PartialEq)]
pub struct HostBatch {
    /// Augmented, but not normalised; of several views of each sample, all first ones, then all second ones.
    pub images: ByteImages,
    pub labels: Vec<u32>,
    pub ids: Vec<u32>,
    /// The classes of the images mixed into them, if any.
    pub partners: Option<Partners>,
    /// The factor of each residual branch of a network for each image, `[images, branches]`; empty if all are one.
    pub branches: Vec<f32>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Partners {
    /// The class of each sample's partner.
    pub labels: Vec<u32>,
    /// The share of each sample's own image, 0 to 1, which is the weight of its own label.
    pub share: f32,
}

/// Prepares one batch in parallel: `pictures` are the samples of `shard`, `partners` the images to mix into them, and
/// how; `seed` is the experiment's.
///
/// # Errors
/// [`kiln_system::Error::Data`] or an I/O error if an image file cannot be read or decoded.
pub fn assemble(
    pictures: Vec<Picture>,
    partners: Option<(Vec<Picture>, MixBy)>,
    augment: &Augment,
    seed: u64,
    shard: &Shard,
) -> Result<HostBatch> {
    let size = pictures.first().map_or([0; 2], |picture| picture.size);
    let labels = |pictures: &[Picture]| pictures.iter().map(|picture| picture.label).collect();
    let key =
        |sample, copy: Option<&u32>| SampleKey { seed, epoch: shard.epoch, sample }.copy(copy.copied().unwrap_or(0));
    let mixed =
        |(pictures, by): &(Vec<Picture>, MixBy)| Partners { labels: labels(pictures), share: own_share(*by, size) };
    let Normalization { mean, std } = augment.normalization;
    let own = Pixels { bytes: Vec::new(), shown: Vec::new() };
    let mut batch = HostBatch {
        images: ByteImages { own, partners: None, size, mean, std },
        labels: labels(&pictures),
        ids: shard.ids.clone(),
        partners: partners.as_ref().map(mixed),
        branches: Vec::new(),
    };
    if shard.targets_only {
        return Ok(batch);
    }
    batch.images.own = show(pictures, augment, size, |image| key(shard.ids[image], shard.copies.get(image)))?;
    if let Some((pictures, by)) = partners {
        let key = |image: usize| key(shard.partners[image], shard.partner_copies.get(image));
        batch.images.partners = Some(images::Partners { pixels: show(pictures, augment, size, key)?, by });
    }
    Ok(batch)
}

/// Augments `pictures` of `size`, decoded once for all views of each; `key` has the key of each.
fn show(
    pictures: Vec<Picture>,
    augment: &Augment,
    size: [usize; 2],
    key: impl Fn(usize) -> SampleKey + Sync,
) -> Result<Pixels> {
    let stride = CHANNELS * size[0] * size[1];
    // An image in memory is little work; decoding one is worth a thread.
    let least = if pictures.iter().all(Picture::is_ready) { FEW } else { 1 };
    let (samples, images) = (pictures.len(), pictures.len() * augment.views);
    let (mut bytes, mut shown) = (vec![0; images * stride], vec![VisibleAreas::default(); images]);
    let mut views: Vec<Vec<_>> = pictures.iter().map(|_| Vec::with_capacity(augment.views)).collect();
    let each = bytes.chunks_exact_mut(stride.max(1)).zip(&mut shown).enumerate();
    each.for_each(|(at, view)| views[at % samples].push(view));
    let each = views.into_par_iter().with_min_len(least).zip(pictures).enumerate();
    each.try_for_each(|(sample, (views, picture))| -> Result<()> {
        let key = key(sample);
        let image = picture.shown(Some(key))?;
        for (nth, (out, shown)) in views.into_iter().enumerate() {
            *shown = augment.apply_view(nth, &image, size, key, out);
        }
        Ok(())
    })?;
    Ok(Pixels { bytes, shown })
}
