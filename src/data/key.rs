//! Random numbers with names instead of order.
//!
//! A draw is a hash of what it is for: (seed, epoch, sample, purpose). No generator is passed around, so nothing
//! depends on which replica, thread or batch asks, or in which order; that is what makes an experiment the same on any
//! number of devices. The order of samples has its own stream, in the sampler.

/// What a random number decides about a sample. The numbers are part of every result: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Row offset of the random crop.
    CropTop = 1,
    /// Column offset of the random crop.
    CropLeft = 2,
    /// Whether the image is mirrored.
    Flip = 3,
    /// Row of the centre of cutout's square.
    CutoutRow = 4,
    /// Column of the centre of cutout's square.
    CutoutColumn = 5,
}

/// The sample a draw is about, in an epoch of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The experiment's seed.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: usize,
    /// The sample's id in its data set.
    pub sample: u32,
}

impl Key {
    /// A number in `0..bound` for one purpose; 0 when `bound` is 0.
    pub fn draw(self, purpose: Purpose, bound: u32) -> u32 {
        let hash = [self.epoch as u64, self.sample.into(), purpose as u64].into_iter().fold(mix(self.seed), absorb);
        below(hash, bound)
    }
}

/// Folds one more word into a hash. Mixing between words keeps (1, 2) apart from (2, 1).
pub(super) fn absorb(hash: u64, word: u64) -> u64 {
    mix(hash ^ mix(word))
}

/// Scales a uniform 64-bit number to `0..bound`; the bias is below `bound / 2^32`, the multiplication is Lemire's.
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
