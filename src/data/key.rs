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
    /// Which operation RandAugment performs as its n-th.
    RandAugmentOperation = 6,
    /// Whether RandAugment's n-th operation goes the other way.
    RandAugmentSign = 7,
    /// Whether a rectangle is erased.
    Erase = 8,
    /// Area of the n-th rectangle that is tried.
    EraseArea = 9,
    /// Height to width of the n-th rectangle that is tried.
    EraseAspect = 10,
    /// First row of the erased rectangle.
    EraseTop = 11,
    /// First column of the erased rectangle.
    EraseLeft = 12,
    /// Whether a micro-batch is mixed.
    Mix = 13,
    /// Whether it is mixed by cutmix, where mixup is on as well.
    MixByCutmix = 14,
    /// Seed of the share that a mixed image keeps of itself.
    MixShare = 15,
    /// Row of the centre of cutmix's rectangle.
    CutmixRow = 16,
    /// Column of the centre of cutmix's rectangle.
    CutmixColumn = 17,
    /// Area of the n-th part of a picture that is tried.
    PartArea = 18,
    /// Width to height of the n-th part that is tried.
    PartAspect = 19,
    /// First column of the part.
    PartLeft = 20,
    /// First row of the part.
    PartTop = 21,
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
    /// The key of another copy of the same sample in the same epoch; the copy 0 is the sample itself.
    pub fn copy(self, nth: u32) -> Self {
        if nth == 0 { self } else { Self { seed: absorb(self.seed, nth.into()), ..self } }
    }

    /// A number in `0..bound` for one purpose; 0 when `bound` is 0.
    pub fn draw(self, purpose: Purpose, bound: u32) -> u32 {
        below(self.hash(purpose), bound)
    }

    /// The `nth` of several numbers in `0..bound` for one purpose; none of them is that of [`Key::draw`].
    pub fn draw_nth(self, purpose: Purpose, nth: u32, bound: u32) -> u32 {
        below(absorb(self.hash(purpose), nth.into()), bound)
    }

    /// The `nth` of several fractions for one purpose, at least 0 and below 1, in steps of 2^-53.
    pub fn fraction(self, purpose: Purpose, nth: u32) -> f64 {
        (absorb(self.hash(purpose), nth.into()) >> 11) as f64 * (-53_f64).exp2()
    }

    /// All 64 bits behind [`Key::draw`].
    pub(super) fn hash(self, purpose: Purpose) -> u64 {
        [self.epoch as u64, self.sample.into(), purpose as u64].into_iter().fold(mix(self.seed), absorb)
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
