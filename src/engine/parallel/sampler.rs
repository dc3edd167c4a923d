//! The order of samples, as a pure function of integers.
//!
//! One permutation per epoch from (seed, epoch); a micro-batch is its next `world size x batch size` entries, and a
//! replica owns every W-th entry of a micro-batch, so that a short one is spread evenly. The position of a run in its
//! data is therefore one number, the global step, from which any set of devices can continue. With repeated
//! augmentation a micro-batch holds fewer samples, each several times in a row (Hoffer et al., 2020).

use std::sync::Arc;

use kiln_system::{Error, Result};
use parking_lot::Mutex;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// What determines the order of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerConfig {
    /// Samples in the data set.
    pub len: usize,
    /// Replicas of the experiment.
    pub world_size: usize,
    /// Samples of one replica in one micro-batch.
    pub batch_size: usize,
    /// Micro-batches per optimizer step.
    pub accumulation_steps: usize,
    pub seed: u64,
    /// Whether a short last micro-batch is left out.
    pub drop_last: bool,
    /// Whether each epoch is permuted; `false` keeps the data set's order.
    pub shuffle: bool,
    /// The most (global) micro-batches per epoch; 0 = all.
    pub limit_micro_batches: usize,
    /// How often a sample is repeated in its micro-batch; with `n` repeats an epoch shows one n-th of the samples.
    pub repeats: usize,
}

/// An epoch and its order.
type Permutation = (usize, Arc<Vec<u32>>);

/// The samples of every step of every epoch.
#[derive(Debug, Clone)]
pub struct Sampler {
    config: SamplerConfig,
    micro_batches: usize,
    // The last two epochs: at the end of one, loaders already need the next.
    cache: Arc<Mutex<Vec<Permutation>>>,
    /// The shard of each sample, and how many are mixed with one another.
    windows: Option<(Arc<[u32]>, usize)>,
}

/// The samples of one optimizer step. Taking a replica's part costs time proportional to its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    order: Arc<Vec<u32>>,
    micro_batches: Vec<MicroBatch>,
    /// How many entries in a row a sample has in its micro-batch; the last sample may have fewer.
    repeats: usize,
}

/// A piece of an epoch's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatch {
    /// The index of its first sample in the order.
    pub start: usize,
    /// Its number of entries, repeats included.
    pub len: usize,
}

impl Group {
    /// Pieces of `order`, with `repeats` entries per sample.
    pub fn new(order: Arc<Vec<u32>>, micro_batches: Vec<MicroBatch>, repeats: usize) -> Self {
        Self { order, micro_batches, repeats: repeats.max(1) }
    }

    pub fn micro_batches(&self) -> usize {
        self.micro_batches.len()
    }

    /// How many samples the step sees, over all replicas.
    pub fn samples(&self) -> usize {
        self.micro_batches.iter().map(|micro| micro.len).sum()
    }

    /// How many entries of micro-batch `micro` each of `world_size` replicas has.
    pub fn shares(&self, micro: usize, world_size: usize) -> Vec<usize> {
        (0..world_size).map(|replica| self.places(micro, replica, world_size).count()).collect()
    }

    /// The ids of micro-batch `micro` over all replicas, in order.
    pub fn ids(&self, micro: usize) -> Vec<u32> {
        self.shard(micro, 0, 1)
    }

    /// The part of micro-batch `micro` that `replica` of `world_size` owns; empty where the micro-batch is too short.
    pub fn shard(&self, micro: usize, replica: usize, world_size: usize) -> Vec<u32> {
        self.places(micro, replica, world_size).map(|at| self.entry(micro, at)).collect()
    }

    /// The partner of each sample of that part, for mixing images: of `n` samples over all replicas, the `i`-th and the
    /// `n - 1 - i`-th are partners.
    pub fn partners(&self, micro: usize, replica: usize, world_size: usize) -> Vec<u32> {
        self.mirrored(micro, replica, world_size).map(|at| self.entry(micro, at)).collect()
    }

    /// Which copy of its sample each entry of [`Group::shard`] is, from 0.
    pub fn copies(&self, micro: usize, replica: usize, world_size: usize) -> Vec<u32> {
        self.places(micro, replica, world_size).map(|at| (at % self.repeats) as u32).collect()
    }

    /// Which copy of its sample each entry of [`Group::partners`] is, from 0.
    pub fn partner_copies(&self, micro: usize, replica: usize, world_size: usize) -> Vec<u32> {
        self.mirrored(micro, replica, world_size).map(|at| (at % self.repeats) as u32).collect()
    }

    /// The indices of a replica's entries in a micro-batch; none for a micro-batch that does not exist.
    fn places(&self, micro: usize, replica: usize, world_size: usize) -> impl Iterator<Item = usize> + use<> {
        (replica..self.len_of(micro)).step_by(world_size.max(1))
    }

    /// The indices of their partners.
    fn mirrored(&self, micro: usize, replica: usize, world_size: usize) -> impl Iterator<Item = usize> + use<> {
        let len = self.len_of(micro);
        self.places(micro, replica, world_size).map(move |at| len - 1 - at)
    }

    fn len_of(&self, micro: usize) -> usize {
        self.micro_batches.get(micro).map_or(0, |micro| micro.len)
    }

    fn entry(&self, micro: usize, at: usize) -> u32 {
        self.order[self.micro_batches[micro].start + at / self.repeats]
    }
}

impl Sampler {
    /// Checks that an epoch holds at least one step.
    ///
    /// # Errors
    /// A usage error when there is no sample, when a size is 0, or when `drop_last` would leave no micro-batch.
    pub fn new(config: SamplerConfig) -> Result<Self> {
        let SamplerConfig { len, world_size, batch_size, accumulation_steps, .. } = config;
        if world_size == 0 || batch_size == 0 || accumulation_steps == 0 {
            return Err(Error::usage(
                "--world-size, --batch-size and --accumulation-steps must be at least 1; one of them is '0'",
            ));
        }
        if config.repeats == 0 {
            return Err(Error::usage(
                "data.repeated_augmentation must be at least 1, got '0'; 1 shows every image once",
            ));
        }
        if len == 0 || u32::try_from(len).is_err() {
            return Err(Error::usage(format!(
                "a data set of '{len}' training images cannot be sampled; it needs 1 to {}: see --data-dir",
                u32::MAX
            )));
        }
        let global = world_size.saturating_mul(batch_size);
        let whole = if config.drop_last { len / global } else { len.div_ceil(global) };
        if whole == 0 {
            return Err(Error::usage(format!(
                "no training step is left: data.drop_last drops the only batch, as {len} images do not fill a global \
                 batch of '{global}' (--world-size {world_size} x --batch-size {batch_size}); lower --batch-size or \
                 --world-size, or set data.drop_last=false"
            )));
        }
        let micro_batches = if config.limit_micro_batches == 0 { whole } else { whole.min(config.limit_micro_batches) };
        Ok(Self { config, micro_batches, cache: Arc::default(), windows: None })
    }

    /// The same, but with an order that needs only `window` shards at a time: shards are permuted, then the samples of
    /// each `window` of them. `shards` has the shard of every sample, from 0; without any the order stays as it is.
    pub fn in_windows(self, shards: &[u32], window: usize) -> Self {
        let windows = (!shards.is_empty()).then(|| (shards.into(), window.max(1)));
        Self { windows, cache: Arc::default(), ..self }
    }

    /// Samples of the data set.
    #[allow(clippy::len_without_is_empty, reason = "there is always a sample")]
    pub fn len(&self) -> usize {
        self.config.len
    }

    /// Optimizer steps in one epoch; the last may have fewer micro-batches.
    pub fn steps_per_epoch(&self) -> usize {
        self.micro_batches.div_ceil(self.config.accumulation_steps)
    }

    /// The steps of an epoch that its first `samples` samples fill; all of them when no sample is left.
    pub fn steps_within(&self, samples: usize) -> usize {
        let global = self.config.world_size.saturating_mul(self.config.batch_size);
        let whole = self.micro_batches.saturating_mul(global).min(self.config.len);
        let step = global.saturating_mul(self.config.accumulation_steps);
        if samples >= whole { self.steps_per_epoch() } else { samples / step }
    }

    /// The samples of step `step_in_epoch` of `epoch`, both from 0; no micro-batch at or after the epoch's end.
    pub fn group(&self, epoch: usize, step_in_epoch: usize) -> Group {
        let first = step_in_epoch.saturating_mul(self.config.accumulation_steps).min(self.micro_batches);
        let end = first.saturating_add(self.config.accumulation_steps).min(self.micro_batches);
        let global = self.config.world_size.saturating_mul(self.config.batch_size);
        let repeats = self.config.repeats;
        // Every micro-batch starts with a new sample, so that all copies of one are in the same.
        let start = |micro: usize| micro * global.div_ceil(repeats);
        let len = |micro: usize| global.min(self.config.len - micro * global);
        let micro_batches = (first..end).map(|micro| MicroBatch { start: start(micro), len: len(micro) }).collect();
        Group::new(self.order(epoch), micro_batches, repeats)
    }

    fn order(&self, epoch: usize) -> Arc<Vec<u32>> {
        let mut cache = self.cache.lock();
        if let Some((_, order)) = cache.iter().find(|(cached, _)| *cached == epoch) {
            return order.clone();
        }
        let order = Arc::new(self.permutation(epoch));
        cache.truncate(1);
        cache.insert(0, (epoch, order.clone()));
        order
    }

    /// A Fisher-Yates shuffle by ChaCha8 keyed with (seed, epoch): the same on every machine and in every version.
    fn permutation(&self, epoch: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.config.len as u32).collect();
        if self.config.shuffle {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&self.config.seed.to_le_bytes());
            key[8..16].copy_from_slice(&(epoch as u64).to_le_bytes());
            key[16..].copy_from_slice(b"order of samples");
            let mut random = ChaCha8Rng::from_seed(key);
            let Some((shards, window)) = &self.windows else {
                permute(&mut order, &mut random);
                return order;
            };
            let mut permuted: Vec<u32> = (0..=shards.iter().max().copied().unwrap_or(0)).collect();
            permute(&mut permuted, &mut random);
            // `permuted` has the place of each shard.
            let window_of = |id: u32| permuted[shards[id as usize] as usize] as usize / window;
            order.sort_by_key(|id| window_of(*id));
            order
                .chunk_by_mut(|one, other| window_of(*one) == window_of(*other))
                .for_each(|samples| permute(samples, &mut random));
        }
        order
    }
}

fn permute(order: &mut [u32], random: &mut ChaCha8Rng) {
    for last in (1..order.len()).rev() {
        order.swap(last, uniform(random, last as u32 + 1) as usize);
    }
}

/// A number in `0..bound` without bias: multiply and reject (Lemire, 2019). `bound` is at least 1.
fn uniform(random: &mut ChaCha8Rng, bound: u32) -> u32 {
    let reject_below = bound.wrapping_neg() % bound;
    loop {
        let product = u64::from(random.next_u32()) * u64::from(bound);
        if product as u32 >= reject_below {
            return (product >> 32) as u32;
        }
    }
}

/// The batches of ids on which `replica` validates, in the data set's order; every replica gets equally many batches.
///
/// Over all replicas each of `len` images appears exactly once; the last batches may be short or empty. A `limit` above
/// 0 keeps only the first `limit` global batches (`limit x world_size x batch_size` images).
pub fn validation_batches(
    len: usize,
    world_size: usize,
    replica: usize,
    batch_size: usize,
    limit: usize,
) -> Vec<Vec<u32>> {
    let ids: Vec<u32> = (0..len as u32).collect();
    let batches = if limit == 0 { usize::MAX } else { limit };
    let global = world_size.saturating_mul(batch_size).max(1);
    let part = |batch: &[u32]| batch.iter().skip(replica).step_by(world_size.max(1)).copied().collect();
    ids.chunks(global).take(batches).map(part).collect()
}

/// The replica that has the validation image `image` by [`validation_batches`], and the image's index on it.
pub fn validation_place(image: usize, world_size: usize) -> (usize, usize) {
    (image % world_size, image / world_size)
}
