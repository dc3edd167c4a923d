//! Random brightness, contrast, saturation and hue of an image, in a random order: torchvision's `ColorJitter` on a
//! Pillow image, with the same range for the first three, which is also timm's `--color-jitter`.

use super::auto_augment::{Operation, adjust};
use super::sample_key::{Purpose, SampleKey};

/// What is varied; a draw has the index of its property.
const PROPERTIES: [Operation; 4] = [Operation::Brightness, Operation::Contrast, Operation::Color, Operation::Hue];
const HUE: usize = 3;

/// Every order of the first three; a draw is an index into it.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColorJitter {
    /// Factors are uniform between `1 - strength` and `1 + strength`; 0 to 1.
    pub strength: f64,
    /// The hue is turned by a uniform share of the circle between `-hue` and `hue`; 0 to 0.5, 0 = not at all.
    pub hue: f64,
}

impl ColorJitter {
    /// What is done to a sample, in this order, each with its argument.
    pub fn draw(&self, key: SampleKey) -> Vec<(Operation, f64)> {
        let order = ORDERS[key.draw(Purpose::JitterOrder, ORDERS.len() as u32) as usize];
        let spread = |property: usize| 2.0 * key.fraction(Purpose::JitterFactor, property as u32) - 1.0;
        let blend = |property: usize| (PROPERTIES[property], 1.0 + self.strength * spread(property));
        let mut drawn = order.map(blend).to_vec();
        if self.hue > 0.0 {
            let place = key.draw(Purpose::JitterHuePlace, drawn.len() as u32 + 1) as usize;
            drawn.insert(place, (PROPERTIES[HUE], self.hue * spread(HUE)));
        }
        drawn
    }

    /// Varies an image `[3, height, width]`.
    pub fn apply(&self, image: &mut [u8], size: [usize; 2], key: SampleKey) {
        self.draw(key).into_iter().for_each(|(operation, argument)| adjust(operation, argument, image, size));
    }
}
