//! Images of the samples of a batch, in host memory, as a network takes them.

use rayon::prelude::*;

use super::augment::Augment;
use super::dataset::{CHANNELS, ImageSet};
use super::key::Key;
use super::mixing::Mix;
use crate::error::Result;

/// Images in memory that a thread augments together.
const FEW: usize = 8;

/// One micro-batch of one replica, in host memory. It may hold no sample.
#[derive(Debug, Clone, PartialEq)]
pub struct HostBatch {
    /// Normalised pixels `[n, 3, height, width]`.
    pub pixels: Vec<f32>,
    /// The class of each sample.
    pub labels: Vec<u32>,
    /// The id of each sample in its data set.
    pub ids: Vec<u32>,
    /// What is mixed into them, where images are mixed.
    pub partners: Option<Partners>,
    /// `[height, width]`, in pixels.
    pub size: [usize; 2],
}

/// The other images that a micro-batch's images show.
#[derive(Debug, Clone, PartialEq)]
pub struct Partners {
    /// The class of each sample's partner.
    pub labels: Vec<u32>,
    /// How much each sample shows of itself, 0 to 1: the weight of its own label beside the partner's.
    pub share: f32,
}

impl HostBatch {
    /// How many samples it holds.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// The samples of one future batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// The epoch they are shown in, from 0.
    pub epoch: usize,
    /// Their ids, in order; may be empty.
    pub ids: Vec<u32>,
    /// Which copy of its sample each of them is, from 0; empty where there are no copies.
    pub copies: Vec<u32>,
    /// What is mixed into them, where images are mixed.
    pub mixed: Option<Mixed>,
}

/// The other samples of one future batch, and what they are for.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixed {
    /// The id of each sample's partner, one for each sample.
    pub partners: Vec<u32>,
    /// Which copy of its sample each partner is, from 0; empty where there are no copies.
    pub copies: Vec<u32>,
    /// How a sample and its partner become one image.
    pub mix: Mix,
}

/// Prepares one batch here and now; `seed` is the experiment's. What has to be decoded or resized is, in parallel.
///
/// # Errors
/// When an image's file cannot be read or is no image.
pub fn assemble(images: &ImageSet, augment: &Augment, seed: u64, request: Request) -> Result<HostBatch> {
    let size = images.size();
    let stride = CHANNELS * size[0] * size[1];
    let Request { epoch, ids, copies, mixed } = request;
    let mut pixels = vec![0.0; ids.len() * stride];
    let show = |sample: u32, copy: Option<&u32>, out: &mut [f32]| -> Result<()> {
        let key = Key { seed, epoch, sample }.copy(copy.copied().unwrap_or(0));
        augment.apply(&images.varied(sample, key)?, size, key, out);
        Ok(())
    };
    let write = |(position, out): (usize, &mut [f32])| -> Result<()> {
        show(ids[position], copies.get(position), out)?;
        if let Some(Mixed { partners, copies, mix }) = &mixed
            && *mix != Mix::None
        {
            let mut partner = vec![0.0; stride];
            show(partners[position], copies.get(position), &mut partner)?;
            mix.apply(out, &partner, size);
        }
        Ok(())
    };
    // An image in memory is little work; one that has to be decoded is worth a thread.
    let least = if images.is_on_demand() { 1 } else { FEW };
    pixels.par_chunks_exact_mut(stride).with_min_len(least).enumerate().try_for_each(write)?;
    let labels = |ids: &[u32]| ids.iter().map(|&id| images.label(id)).collect();
    let partners = mixed.map(|it| Partners { labels: labels(&it.partners), share: it.mix.share(size) });
    Ok(HostBatch { pixels, labels: labels(&ids), ids, partners, size })
}
