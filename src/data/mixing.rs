//! Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019).
//!
//! As in timm's batch mode, the global micro-batch is mixed with itself in reverse order, with one draw for all of it.
//! The draw depends on its first sample only, so every replica draws the same without communication. The sampler
//! assigns the partners; the model computes the loss of two labels.

use kiln_ops::images::MixBy;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Beta, Distribution};

use super::config::DataConfig;
use super::rectangle::Rectangle;
use super::sample_key::{Purpose, SampleKey};

/// The probabilities and strengths of mixing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mixing {
    /// Mixup's share is drawn from Beta(alpha, alpha); 0 = no mixup.
    pub mixup_alpha: f64,
    /// The same for CutMix.
    pub cutmix_alpha: f64,
    /// The probability that a micro-batch is mixed, 0 to 1.
    pub prob: f64,
    /// The probability of CutMix if both are on, 0 to 1.
    pub switch_prob: f64,
}

impl Mixing {
    /// The configured mixing; `None` if no micro-batch is ever mixed.
    pub fn new(config: &DataConfig) -> Option<Self> {
        let DataConfig { augment, mixup, cutmix, mix_prob, .. } = *config;
        let mixes = augment && mix_prob > 0.0 && (mixup > 0.0 || cutmix > 0.0);
        mixes.then_some(Self { mixup_alpha: mixup, cutmix_alpha: cutmix, prob: mix_prob, switch_prob: 0.5 })
    }

    /// Draws the mix of a micro-batch of images of `size`, if it is mixed; `key` is that of the first sample of the
    /// global micro-batch.
    pub fn draw(&self, key: SampleKey, size: [usize; 2]) -> Option<MixBy> {
        let happens = |purpose, probability| key.fraction(purpose, 0) < probability;
        if !happens(Purpose::Mix, self.prob) {
            return None;
        }
        let (mixup, cutmix) = (self.mixup_alpha > 0.0, self.cutmix_alpha > 0.0);
        if cutmix && (!mixup || happens(Purpose::MixByCutmix, self.switch_prob)) {
            let centre = [(Purpose::CutmixRow, size[0]), (Purpose::CutmixColumn, size[1])];
            let centre = centre.map(|(purpose, length)| key.draw(purpose, length as u32) as usize);
            Some(MixBy::Area(patch(share(self.cutmix_alpha, key)?, centre, size).bounds()))
        } else {
            share(self.mixup_alpha, key).map(|share| MixBy::Share(share as f32))
        }
    }
}

/// The share of the own image of `size` in a mixed one, 0 to 1, which is the weight of the own label in the loss.
pub fn own_share(by: MixBy, [height, width]: [usize; 2]) -> f32 {
    match by {
        MixBy::Share(share) => share,
        MixBy::Area([top, bottom, left, right]) => {
            let replaced = f64::from(bottom - top) * f64::from(right - left);
            (1.0 - replaced / (height * width) as f64) as f32
        }
    }
}

/// Draws from Beta(alpha, alpha) with the key's own stream; `None` if alpha is not above 0 or not representable.
fn share(alpha: f64, key: SampleKey) -> Option<f64> {
    let mut seed = *b"........own share in a mixed one";
    seed[..8].copy_from_slice(&key.hash(Purpose::MixShare).to_le_bytes());
    let share = Beta::new(alpha, alpha).ok()?.sample(&mut ChaCha8Rng::from_seed(seed));
    (!share.is_nan()).then_some(share)
}

/// CutMix's rectangle around a pixel `centre` (row, column), with the image's aspect ratio and `1 - share` of its area,
/// clipped at the border.
pub fn patch(share: f64, centre: [usize; 2], size: [usize; 2]) -> Rectangle {
    let sides = size.map(|length| (length as f64 * (1.0 - share).sqrt()) as usize);
    Rectangle::around(centre, sides, size)
}
