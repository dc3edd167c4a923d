//! Augmentation policies: which random operations an image goes through, under the names of torchvision and timm.
//!
//! A policy is a table: the operations, and for each the levels from which one is drawn. Read in this order:
//! `operation` (what can be done, as by Pillow), `sampling`, `space` (torchvision's levels), `policies`, `augmix`,
//! `timm`. RandAugment by torchvision's rules has its own keys in the configuration.

mod augmix;
mod operation;
mod policies;
mod sampling;
mod space;
mod timm;

use std::fmt;
use std::str::FromStr;

use kiln_ops::images::CHANNELS;

use crate::interpolation::Interpolation;
use crate::sample_key::{Purpose, SampleKey};

pub(super) use operation::adjust;
use operation::drawn;
pub use operation::{Operation, Step};
pub use space::Space;
pub use timm::TimmRand;

/// What `data.auto_augment` selects.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AutoAugment {
    None,
    /// torchvision's `TrivialAugmentWide`: one operation on a random level (Müller and Hutter, 2021).
    TrivialWide,
    /// torchvision's `AutoAugment` with the policy for ImageNet.
    ImageNet,
    /// The same with that for CIFAR-10.
    Cifar10,
    /// Chains of operations on the first `severity` of ten levels, mixed with the image.
    AugMix {
        severity: u32,
    },
    /// timm's RandAugment.
    Rand(TimmRand),
}

/// The severity of AugMix by default.
const SEVERITY: u32 = 3;

impl AutoAugment {
    /// Applies the operations of one sample to `image` `[3, height, width]`. timm's RandAugment fills what comes from
    /// outside of it with the colour `mean`, the others fill it black; its operations interpolate as
    /// `interpolation` says, or each as drawn.
    pub fn apply(
        self,
        image: &[u8],
        size: [usize; 2],
        mean: [u8; CHANNELS],
        interpolation: Option<Interpolation>,
        key: SampleKey,
    ) -> Vec<u8> {
        let steps = match self {
            Self::None => Vec::new(),
            Self::TrivialWide => vec![trivial(size, key)],
            Self::ImageNet => learned(&policies::IMAGENET, size, key),
            Self::Cifar10 => learned(&policies::CIFAR10, size, key),
            Self::AugMix { severity } => return augmix::apply(severity, image, size, key),
            Self::Rand(rand) => rand.draw(size, mean, interpolation, key),
        };
        let mut image = image.to_vec();
        steps.into_iter().for_each(|step| step.perform(&mut image, size));
        image
    }
}

/// RandAugment (Cubuk, Zoph, Shlens and Le, 2020) with operations, strengths and signs of torchvision's: `ops` random
/// operations of one magnitude, 0 to 30; larger ones are clamped.
pub fn rand_augment(ops: usize, magnitude: u32, size: [usize; 2], key: SampleKey) -> impl Iterator<Item = Step> {
    let level = magnitude.min(Space::RAND.last);
    (0..ops as u32).map(move |nth| Space::RAND.step(drawn(&Operation::ALL, nth, key), level, nth, size, key))
}

fn trivial(size: [usize; 2], key: SampleKey) -> Step {
    let level = key.draw_nth(Purpose::OperationLevel, 0, Space::TRIVIAL.last + 1);
    Space::TRIVIAL.step(drawn(&Operation::ALL, 0, key), level, 0, size, key)
}

/// The operations of one random pair that happen.
fn learned(policy: &[policies::Pair], size: [usize; 2], key: SampleKey) -> Vec<Step> {
    let pair = policy[key.draw_nth(Purpose::RandAugmentOperation, 0, policy.len() as u32) as usize];
    let happens = |(nth, (_, probability, _)): &(u32, (Operation, f64, u32))| {
        key.fraction(Purpose::OperationProbability, *nth) <= *probability
    };
    let step = |(nth, (operation, _, level))| Space::AUTO.step(operation, level, nth, size, key);
    (0..).zip(pair).filter(happens).map(step).collect()
}

impl FromStr for AutoAugment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const RULE: &str = "ta_wide, imagenet, cifar10, augmix, augmix-s1 to augmix-s10, timm's RandAugment as in \
                            rand-m9-mstd0.5-inc1 (of m, n, p, mstd, mmax and inc), or empty for none";
        let severity = |text: &str| text.parse().ok().filter(|severity| (1..=10).contains(severity));
        let known = match text {
            "" => Some(Self::None),
            "ta_wide" => Some(Self::TrivialWide),
            "imagenet" => Some(Self::ImageNet),
            "cifar10" => Some(Self::Cifar10),
            "augmix" => Some(Self::AugMix { severity: SEVERITY }),
            text => match text.strip_prefix("augmix-s") {
                Some(text) => severity(text).map(|severity| Self::AugMix { severity }),
                None => text.strip_prefix("rand").and_then(TimmRand::read).map(Self::Rand),
            },
        };
        known.ok_or_else(|| RULE.into())
    }
}

impl fmt::Display for AutoAugment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::TrivialWide => f.write_str("ta_wide"),
            Self::ImageNet => f.write_str("imagenet"),
            Self::Cifar10 => f.write_str("cifar10"),
            Self::AugMix { severity: SEVERITY } => f.write_str("augmix"),
            Self::AugMix { severity } => write!(f, "augmix-s{severity}"),
            Self::Rand(rand) => rand.fmt(f),
        }
    }
}
