//! AugMix (Hendrycks, Mu, Cubuk, Zoph, Gilmer and Lakshminarayanan, 2020): an image, mixed with three versions of it
//! that went through chains of operations.
//!
//! Shares, chains and levels are those of torchvision's `AugMix` with its defaults. The operations are those on Pillow
//! images, as for the other policies; torchvision's mixes what its operations on tensors make, which round differently.

use crate::interpolation::Interpolation;
use crate::sample_key::{Purpose, SampleKey};

use super::operation::Operation::{self, *};
use super::operation::{Step, drawn};
use super::space::Space;

/// The operations in torchvision's order; a draw is an index into it.
#[rustfmt::skip]
const OPERATIONS: [Operation; 13] = [
    ShearX, ShearY, TranslateX, TranslateY, Rotate, Posterize, Solarize, AutoContrast, Equalize, Brightness, Color,
    Contrast, Sharpness,
];

/// The number of chains.
const WIDTH: usize = 3;

/// Operations in the longest chain.
const DEEPEST: u32 = 3;

/// The chain `nth`, of levels below `severity`.
fn chain(nth: u32, severity: u32, size: [usize; 2], key: SampleKey) -> impl Iterator<Item = Step> {
    let depth = 1 + key.draw_nth(Purpose::AugmixDepth, nth, DEEPEST);
    (nth * DEEPEST..nth * DEEPEST + depth).map(move |nth| {
        let level = key.draw_nth(Purpose::OperationLevel, nth, severity);
        Step {
            interpolation: Interpolation::Bilinear,
            ..Space::AUGMIX.step(drawn(&OPERATIONS, nth, key), level, nth, size, key)
        }
    })
}

/// Mixes `image` `[3, height, width]` with its versions.
pub(super) fn apply(severity: u32, image: &[u8], size: [usize; 2], key: SampleKey) -> Vec<u8> {
    // Beta(1, 1) and Dirichlet(1, 1, 1), which are a uniform number and shares of exponential ones.
    let mixed = key.fraction(Purpose::AugmixShare, 0);
    let parts: [f64; WIDTH] =
        std::array::from_fn(|nth| -(1.0 - key.fraction(Purpose::AugmixShare, 1 + nth as u32)).ln());
    let sum = parts.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let mut sums: Vec<f32> = image.iter().map(|byte| (1.0 - mixed) as f32 * f32::from(*byte)).collect();
    for (nth, part) in (0..).zip(parts) {
        let mut version = image.to_vec();
        chain(nth, severity, size, key).for_each(|step| step.perform(&mut version, size));
        let share = (part / sum) as f32 * mixed as f32;
        sums.iter_mut().zip(version).for_each(|(sum, byte)| *sum += share * f32::from(byte));
    }
    // The conversion drops the fraction.
    sums.into_iter().map(|sum| sum as u8).collect()
}
