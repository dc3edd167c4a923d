//! RandAugment: some random operations of one magnitude (Cubuk, Zoph, Shlens and Le, 2020).
//!
//! Operations, strengths and signs are those of torchvision's `RandAugment` with its 31 magnitudes, applied to a Pillow
//! image with nearest interpolation. `pixel_ops.rs` implements the operations.

use super::dataset::CHANNELS;
use super::pixel_ops::{affine, blend, equalized, identity, luma, map_levels, mean, rotation, smooth, stretched};
use super::sample_key::{Purpose, SampleKey};

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

/// An operation on an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Nothing.
    Identity,
    /// Horizontal shear.
    ShearX,
    /// Vertical shear.
    ShearY,
    /// Horizontal shift by whole pixels.
    TranslateX,
    /// Vertical shift by whole pixels.
    TranslateY,
    /// Rotation around the centre.
    Rotate,
    /// Blend with black.
    Brightness,
    /// Blend with the greyscale image.
    Color,
    /// Blend with the mean grey.
    Contrast,
    /// Blend with the smoothed image.
    Sharpness,
    /// Keeps only the high bits of every level.
    Posterize,
    /// Inverts the levels from a threshold on.
    Solarize,
    /// Stretches each channel to the full range.
    AutoContrast,
    /// Equalises the histogram of each channel.
    Equalize,
}

impl Operation {
    /// All operations in torchvision's order; a draw is an index into it.
    pub const ALL: [Self; 14] = [
        Self::Identity,
        Self::ShearX,
        Self::ShearY,
        Self::TranslateX,
        Self::TranslateY,
        Self::Rotate,
        Self::Brightness,
        Self::Color,
        Self::Contrast,
        Self::Sharpness,
        Self::Posterize,
        Self::Solarize,
        Self::AutoContrast,
        Self::Equalize,
    ];
}

impl RandAugment {
    /// The largest magnitude.
    pub const STRONGEST: u32 = 30;

    /// Draws the operations of one sample and applies them to `image` `[3, height, width]`.
    pub fn apply(&self, image: &[u8], size: [usize; 2], key: SampleKey) -> Vec<u8> {
        let mut image = image.to_vec();
        for nth in 0..self.ops as u32 {
            let drawn = key.draw_nth(Purpose::RandAugmentOperation, nth, Operation::ALL.len() as u32);
            let negative = key.draw_nth(Purpose::RandAugmentSign, nth, 2) == 1;
            self.perform(Operation::ALL[drawn as usize], negative, &mut image, size);
        }
        image
    }

    /// Applies one operation; `negative` reverses those with a direction.
    pub fn perform(&self, operation: Operation, negative: bool, image: &mut [u8], size: [usize; 2]) {
        let [height, width] = size;
        let signed = |most: f32| if negative { -self.level(0.0, most) } else { self.level(0.0, most) };
        let pixels = |length: usize| signed((150.0 / 331.0 * length as f64) as f32).trunc();
        let factor = || 1.0 + signed(0.9);
        match operation {
            Operation::Identity => {}
            Operation::ShearX => affine(image, size, [[1.0, signed(0.3), 0.0], [0.0, 1.0, 0.0]], self.fill),
            Operation::ShearY => affine(image, size, [[1.0, 0.0, 0.0], [signed(0.3), 1.0, 0.0]], self.fill),
            Operation::TranslateX => affine(image, size, [[1.0, 0.0, -pixels(width)], [0.0, 1.0, 0.0]], self.fill),
            Operation::TranslateY => affine(image, size, [[1.0, 0.0, 0.0], [0.0, 1.0, -pixels(height)]], self.fill),
            Operation::Rotate => affine(image, size, rotation(size, signed(30.0)), self.fill),
            Operation::Brightness => blend(&vec![0; image.len()], image, factor()),
            Operation::Color => blend(&luma(image).repeat(CHANNELS), image, factor()),
            Operation::Contrast => blend(&vec![mean(&luma(image)); image.len()], image, factor()),
            Operation::Sharpness => blend(&smooth(image, size), image, factor()),
            Operation::Posterize => {
                let dropped = (f64::from(self.magnitude()) / 7.5).round() as u32;
                map_levels(image, |_| identity().map(|level| level >> dropped << dropped));
            }
            Operation::Solarize => {
                let threshold = self.level(255.0, 0.0);
                let invert = |level| if f64::from(level) < threshold { level } else { 255 - level };
                map_levels(image, |_| identity().map(invert));
            }
            Operation::AutoContrast => map_levels(image, stretched),
            Operation::Equalize => map_levels(image, equalized),
        }
    }

    fn magnitude(&self) -> u32 {
        self.magnitude.min(Self::STRONGEST)
    }

    /// The strength, interpolated between those of magnitude 0 and of the largest. Rounded as by `torch.linspace` on
    /// processors with fused multiply-add, because truncation to whole pixels and levels depends on the last bit.
    fn level(&self, weakest: f32, strongest: f32) -> f64 {
        let step = f64::from((strongest - weakest) / Self::STRONGEST as f32);
        let (done, left) = (self.magnitude(), Self::STRONGEST - self.magnitude());
        let level = if done < left {
            f64::from(weakest) + step * f64::from(done)
        } else {
            f64::from(strongest) - step * f64::from(left)
        };
        f64::from(level as f32)
    }
}
