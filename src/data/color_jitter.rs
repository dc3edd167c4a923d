//! Random brightness, contrast, saturation and hue of an image, in a random order: torchvision's `ColorJitter` on a
//! Pillow image, with the same range for the first three, which is also timm's `--color-jitter`.

use super::dataset::CHANNELS;
use super::pixel_ops::{blend, luma, mean, turn_hue};
use super::sample_key::{Purpose, SampleKey};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// Blend with black.
    Brightness,
    /// Blend with the mean grey.
    Contrast,
    /// Blend with the greyscale image.
    Saturation,
    /// Turn the circle of colours.
    Hue,
}

use Property::{Brightness, Contrast, Hue, Saturation};

/// Every order of the first three; a draw is an index into it.
const ORDERS: [[Property; 3]; 6] = [
    [Brightness, Contrast, Saturation],
    [Brightness, Saturation, Contrast],
    [Contrast, Brightness, Saturation],
    [Contrast, Saturation, Brightness],
    [Saturation, Brightness, Contrast],
    [Saturation, Contrast, Brightness],
];

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColorJitter {
    /// Factors are uniform between `1 - strength` and `1 + strength`; 0 to 1.
    pub strength: f64,
    /// The hue is turned by a uniform share of the circle between `-hue` and `hue`; 0 to 0.5, 0 = not at all.
    pub hue: f64,
}

impl ColorJitter {
    /// What is done to a sample, in this order, each with its factor: 1 changes nothing, 0 leaves only what is blended
    /// in. That of the hue is a share of the circle.
    pub fn draw(&self, key: SampleKey) -> Vec<(Property, f64)> {
        let order = ORDERS[key.draw(Purpose::JitterOrder, ORDERS.len() as u32) as usize];
        let spread = |property| 2.0 * key.fraction(Purpose::JitterFactor, property as u32) - 1.0;
        let mut drawn: Vec<_> =
            order.into_iter().map(|property| (property, 1.0 + self.strength * spread(property))).collect();
        if self.hue > 0.0 {
            let place = key.draw(Purpose::JitterHuePlace, drawn.len() as u32 + 1) as usize;
            drawn.insert(place, (Hue, self.hue * spread(Hue)));
        }
        drawn
    }

    pub fn apply(&self, image: &mut [u8], key: SampleKey) {
        for (property, factor) in self.draw(key) {
            match property {
                Brightness => blend(&vec![0; image.len()], image, factor),
                Contrast => blend(&vec![mean(&luma(image)); image.len()], image, factor),
                Saturation => blend(&luma(image).repeat(CHANNELS), image, factor),
                Hue => turn_hue(image, factor),
            }
        }
    }
}
