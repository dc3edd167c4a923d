//! Counter-based random numbers, keyed by (seed, epoch, sample, purpose).
//!
//! A draw is a hash of its key. There is no generator with state, so results do not depend on replica, thread, batch or
//! order of draws, and an experiment is the same on any number of devices. The sampler shuffles with its own stream.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

/// The purpose of a random number. The discriminants affect every result: never change or reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    CropTop = 1,
    CropLeft = 2,
    Flip = 3,
    CutoutRow = 4,
    CutoutColumn = 5,
    /// The n-th operation of RandAugment or of another policy.
    RandAugmentOperation = 6,
    /// Whether that has a negative sign.
    RandAugmentSign = 7,
    Erase = 8,
    EraseArea = 9,
    /// Ratio of height to width of the n-th attempted rectangle.
    EraseAspect = 10,
    EraseTop = 11,
    EraseLeft = 12,
    Mix = 13,
    MixByCutmix = 14,
    /// Seed of the share of a mixed image's own pixels.
    MixShare = 15,
    CutmixRow = 16,
    CutmixColumn = 17,
    /// Area of the n-th attempted part of an image.
    PartArea = 18,
    /// Ratio of width to height of the n-th attempted part.
    PartAspect = 19,
    PartLeft = 20,
    PartTop = 21,
    /// The order of brightness, contrast and saturation.
    JitterOrder = 22,
    /// The factor of each of them.
    JitterFactor = 23,
    /// The place of the hue among them.
    JitterHuePlace = 24,
    /// Whether the n-th operation of a policy happens.
    OperationProbability = 25,
    /// Its level.
    OperationLevel = 26,
    /// The noise of its magnitude.
    OperationNoise = 27,
    /// Its interpolation.
    OperationSampling = 28,
    /// The length of AugMix's n-th chain.
    AugmixDepth = 29,
    AugmixShare = 30,
    EraseCount = 31,
    EraseColor = 32,
    /// The filter that resizes a part of an image.
    PartSampling = 33,
    /// Whether the n-th residual branch is left out (stochastic depth).
    DropPath = 60,
}

/// A sample in an epoch of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleKey {
    pub seed: u64,
    pub epoch: usize,
    /// The sample's id in its data set.
    pub sample: u32,
}

impl SampleKey {
    /// The key of copy `nth` of the sample in the same epoch (repeated augmentation); copy 0 is the sample itself.
    pub fn copy(self, nth: u32) -> Self {
        if nth == 0 { self } else { Self { seed: absorb(self.seed, nth.into()), ..self } }
    }

    /// The key of view `nth` of the sample in the same step, for what differs between views; no copy has it.
    pub fn view(self, nth: u32) -> Self {
        self.copy(nth << 16)
    }

    /// A number in `0..bound`; 0 if `bound` is 0.
    pub fn draw(self, purpose: Purpose, bound: u32) -> u32 {
        below(self.hash(purpose), bound)
    }

    /// The `nth` of several numbers in `0..bound` for one purpose, independent of [`SampleKey::draw`].
    pub fn draw_nth(self, purpose: Purpose, nth: u32, bound: u32) -> u32 {
        below(absorb(self.hash(purpose), nth.into()), bound)
    }

    /// The `nth` of several numbers in `[0, 1)` for one purpose, in steps of 2^-53.
    pub fn fraction(self, purpose: Purpose, nth: u32) -> f64 {
        (absorb(self.hash(purpose), nth.into()) >> 11) as f64 * (-53_f64).exp2()
    }

    /// Numbers of the standard normal distribution for one purpose.
    pub fn normals(self, purpose: Purpose) -> impl Iterator<Item = f64> {
        StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(self.hash(purpose)))
    }

    /// The 64 bits from which [`SampleKey::draw`] takes a number.
    pub(super) fn hash(self, purpose: Purpose) -> u64 {
        [self.epoch as u64, self.sample.into(), purpose as u64].into_iter().fold(mix(self.seed), absorb)
    }
}

/// Adds a word to a hash; the order of words matters.
pub(super) fn absorb(hash: u64, word: u64) -> u64 {
    mix(hash ^ mix(word))
}

/// Scales a uniform 64-bit number to `0..bound` by Lemire's multiplication; the bias is below `bound / 2^32`.
pub(super) fn below(hash: u64, bound: u32) -> u32 {
    (((hash >> 32) * u64::from(bound)) >> 32) as u32
}

/// SplitMix64's step and finaliser (Steele, Lea and Flood, 2014): every input bit reaches every output bit.
pub(super) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
