//! RandAugment: some random operations of one magnitude (Cubuk, Zoph, Shlens and Le, 2020).
//!
//! Operations, strengths and signs are those of torchvision's `RandAugment` with its 31 magnitudes, applied to a Pillow
//! image with nearest interpolation. timm's is `auto_augment/timm.rs`.

use super::auto_augment::{Operation, Sampling, Space, Step, drawn, is_negative};
use super::dataset::CHANNELS;
use super::sample_key::SampleKey;

/// The number of operations and their strength.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandAugment {
    /// Operations per image, applied in sequence, each drawn from [`Operation::ALL`].
    pub ops: usize,
    /// Their strength, 0 to [`RandAugment::STRONGEST`]; larger values are clamped.
    pub magnitude: u32,
    /// The colour outside of the image; torchvision's is black.
    pub fill: [u8; CHANNELS],
}

impl RandAugment {
    /// The largest magnitude.
    pub const STRONGEST: u32 = Space::RAND.last;

    /// Draws the operations of one sample and applies them to `image` `[3, height, width]`.
    pub fn apply(&self, image: &[u8], size: [usize; 2], key: SampleKey) -> Vec<u8> {
        let mut image = image.to_vec();
        for nth in 0..self.ops as u32 {
            self.perform(drawn(&Operation::ALL, nth, key), is_negative(nth, key), &mut image, size);
        }
        image
    }

    /// Applies one operation; `negative` reverses those with a direction.
    pub fn perform(&self, operation: Operation, negative: bool, image: &mut [u8], size: [usize; 2]) {
        let argument = Space::RAND.argument(operation, self.magnitude.min(Self::STRONGEST), negative, size);
        Step { operation, argument, sampling: Sampling::Nearest, fill: self.fill }.perform(image, size);
    }
}
