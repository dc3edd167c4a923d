//! Two samples in one image: mixup (Zhang et al., 2018) and cutmix (Yun et al., 2019).
//!
//! As in timm's batch mode a micro-batch is mixed with itself in reverse order, one way for all of it. "It" is the
//! micro-batch of all replicas, and what is drawn depends on its first sample alone, so every replica draws the same
//! without asking, on any number of devices. Who is whose partner is the sampler's; what a loss makes of two labels is
//! not decided here.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Beta, Distribution};

use super::config::DataConfig;
use super::key::{Key, Purpose};
use super::rectangle::Rectangle;

/// How often micro-batches are mixed, and how much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mixing {
    /// Mixup's share is drawn from Beta(alpha, alpha); 0 = no mixup.
    pub mixup_alpha: f64,
    /// The same for cutmix.
    pub cutmix_alpha: f64,
    /// The probability that a micro-batch is mixed at all, 0 to 1.
    pub prob: f64,
    /// The probability of cutmix where both are on, 0 to 1.
    pub switch_prob: f64,
}

/// How the samples of one micro-batch and their partners become one image each.
#[derive(Debug, Clone, PartialEq)]
pub enum Mix {
    /// Not at all.
    None,
    /// Mixup: so much of the own image, the rest of the partner's.
    Blend(f32),
    /// Cutmix: the partner's image shows here.
    Paste(Rectangle),
}

impl Mixing {
    /// What is configured; `None` where no micro-batch would ever be mixed.
    pub fn new(config: &DataConfig) -> Option<Self> {
        let DataConfig { augment, mixup, cutmix, mix_prob, .. } = *config;
        let mixes = augment && mix_prob > 0.0 && (mixup > 0.0 || cutmix > 0.0);
        mixes.then_some(Self { mixup_alpha: mixup, cutmix_alpha: cutmix, prob: mix_prob, switch_prob: 0.5 })
    }

    /// How a micro-batch of images of `size` is mixed; `key` is that of the first sample of all replicas' samples.
    pub fn draw(&self, key: Key, size: [usize; 2]) -> Mix {
        let happens = |purpose, probability| key.fraction(purpose, 0) < probability;
        if !happens(Purpose::Mix, self.prob) {
            return Mix::None;
        }
        let (mixup, cutmix) = (self.mixup_alpha > 0.0, self.cutmix_alpha > 0.0);
        if cutmix && (!mixup || happens(Purpose::MixByCutmix, self.switch_prob)) {
            let centre = [(Purpose::CutmixRow, size[0]), (Purpose::CutmixColumn, size[1])];
            let centre = centre.map(|(purpose, length)| key.draw(purpose, length as u32) as usize);
            share(self.cutmix_alpha, key).map_or(Mix::None, |share| Mix::Paste(patch(share, centre, size)))
        } else {
            share(self.mixup_alpha, key).map_or(Mix::None, |share| Mix::Blend(share as f32))
        }
    }
}

impl Mix {
    /// Mixes `partner` into `own`, both normalised and `[3, height, width]` with `size` `[height, width]`.
    pub fn apply(&self, own: &mut [f32], partner: &[f32], size: [usize; 2]) {
        match self {
            Self::None => {}
            Self::Blend(share) => {
                own.iter_mut().zip(partner).for_each(|(own, partner)| *own = *own * share + partner * (1.0 - share));
            }
            Self::Paste(rectangle) => rectangle.copy(own, partner, size),
        }
    }

    /// The part of the result that is the own image, 0 to 1; the loss weighs the own label with it.
    pub fn share(&self, [height, width]: [usize; 2]) -> f32 {
        match self {
            Self::None => 1.0,
            Self::Blend(share) => *share,
            Self::Paste(rectangle) => (1.0 - rectangle.area() as f64 / (height * width) as f64) as f32,
        }
    }
}

/// From Beta(alpha, alpha), by a stream of the key's own; none where alpha is not above 0, or is beyond what numbers hold.
fn share(alpha: f64, key: Key) -> Option<f64> {
    let mut seed = *b"........own share in a mixed one";
    seed[..8].copy_from_slice(&key.hash(Purpose::MixShare).to_le_bytes());
    let share = Beta::new(alpha, alpha).ok()?.sample(&mut ChaCha8Rng::from_seed(seed));
    (!share.is_nan()).then_some(share)
}

/// Cutmix's rectangle around a pixel `centre` (row, column): of the image's shape and `1 - share` of its area, before the
/// border clips it.
pub fn patch(share: f64, centre: [usize; 2], size: [usize; 2]) -> Rectangle {
    let sides = size.map(|length| (length as f64 * (1.0 - share).sqrt()) as usize);
    Rectangle::around(centre, sides, size)
}
