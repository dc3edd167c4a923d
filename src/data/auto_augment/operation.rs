//! The operations of all policies, each with the argument that the function of Pillow gets.

use kiln_ops::images::CHANNELS;

use crate::interpolation::Interpolation;
use crate::pixel_ops::{
    affine, blend, equalized, identity, luma, map_levels, mean, rotation, smooth, stretched, turn_hue,
};
use crate::sample_key::{Purpose, SampleKey};

use super::sampling::sampled;

/// An operation on an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Nothing.
    Identity,
    /// Horizontal shear.
    ShearX,
    /// Vertical shear.
    ShearY,
    /// Horizontal shift in pixels.
    TranslateX,
    /// Vertical shift in pixels.
    TranslateY,
    /// Rotation around the centre in degrees.
    Rotate,
    /// Blend with black by a factor, of which 1 changes nothing.
    Brightness,
    /// Blend with the greyscale image.
    Color,
    /// Blend with the mean grey.
    Contrast,
    /// Blend with the smoothed image.
    Sharpness,
    /// Keeps only so many high bits of every level.
    Posterize,
    /// Inverts the levels from a threshold on.
    Solarize,
    /// Stretches each channel to the full range.
    AutoContrast,
    /// Equalises the histogram of each channel.
    Equalize,
    /// Inverts every level.
    Invert,
    /// Adds a number to the levels below 128.
    SolarizeAdd,
    /// Turns the circle of colours by a share of it.
    Hue,
}

impl Operation {
    /// Those of torchvision's RandAugment and TrivialAugment in their order; a draw is an index into it.
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

/// The operation `nth` of a sample, one of `operations`.
pub(super) fn drawn(operations: &[Operation], nth: u32, key: SampleKey) -> Operation {
    operations[key.draw_nth(Purpose::RandAugmentOperation, nth, operations.len() as u32) as usize]
}

/// Whether that is reversed.
pub(super) fn is_negative(nth: u32, key: SampleKey) -> bool {
    key.draw_nth(Purpose::RandAugmentSign, nth, 2) == 1
}

/// An operation with all that it needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    pub operation: Operation,
    /// As described at [`Operation`]; negative reverses a shear, shift or rotation.
    pub argument: f64,
    pub interpolation: Interpolation,
    /// The colour outside of the image.
    pub fill: [u8; CHANNELS],
}

impl Step {
    /// Applies the operation to `image` `[3, height, width]`.
    pub fn perform(&self, image: &mut [u8], size: [usize; 2]) {
        let &Self { operation, argument, interpolation, fill } = self;
        let inverse = match operation {
            Operation::ShearX => [[1.0, argument, 0.0], [0.0, 1.0, 0.0]],
            Operation::ShearY => [[1.0, 0.0, 0.0], [argument, 1.0, 0.0]],
            Operation::TranslateX => [[1.0, 0.0, -argument], [0.0, 1.0, 0.0]],
            Operation::TranslateY => [[1.0, 0.0, 0.0], [0.0, 1.0, -argument]],
            Operation::Rotate => rotation(size, argument),
            _ => return adjust(operation, argument, image, size),
        };
        match interpolation {
            Interpolation::Nearest => affine(image, size, inverse, fill),
            _ => sampled(image, size, inverse, fill, interpolation),
        }
    }
}

/// The operations that change the levels only.
pub(crate) fn adjust(operation: Operation, argument: f64, image: &mut [u8], size: [usize; 2]) {
    let map = |image: &mut [u8], level: &dyn Fn(u8) -> u8| map_levels(image, |_| identity().map(level));
    match operation {
        Operation::Brightness => blend(&vec![0; image.len()], image, argument),
        Operation::Color => blend(&luma(image).repeat(CHANNELS), image, argument),
        Operation::Contrast => blend(&vec![mean(&luma(image)); image.len()], image, argument),
        Operation::Sharpness => blend(&smooth(image, size), image, argument),
        Operation::Posterize => {
            let kept = (0xff00_u16 >> argument.clamp(0.0, 8.0) as u32) as u8;
            map(image, &|level| level & kept);
        }
        Operation::Solarize => map(image, &|level| if f64::from(level) < argument { level } else { 255 - level }),
        Operation::AutoContrast => map_levels(image, stretched),
        Operation::Equalize => map_levels(image, equalized),
        Operation::Invert => map(image, &|level| 255 - level),
        Operation::SolarizeAdd => {
            map(image, &|level| if level < 128 { level.saturating_add(argument as u8) } else { level });
        }
        Operation::Hue => turn_hue(image, argument),
        _ => {}
    }
}
