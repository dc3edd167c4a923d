//! Random erasing: blanks a rectangle of some training images (Zhong, Zheng, Kang, Li and Yang, 2020).
//!
//! Area, aspect ratio and position are drawn as by torchvision's `RandomErasing` with its defaults; their number and
//! what is written as by timm's. One rectangle of the mean is an area that becomes 0 after normalisation, exactly. All
//! else is written into the bytes: the number of timm, as if it had been normalised, at the nearest level of 0 to 255.
//! That cannot be seen in the mean-coloured padding of a crop or in a cutout square, which become 0 afterwards.

use super::config::ErasingFill;
use super::dataset::CHANNELS;
use super::normalization::Normalization;
use super::rectangle::Rectangle;
use super::sample_key::{Purpose, SampleKey};

/// Smallest and largest share of the image's area.
const SCALE: [f64; 2] = [0.02, 0.33];

/// Smallest and largest ratio of height to width; uniform in the logarithm.
const RATIO: [f64; 2] = [0.3, 3.3];

/// Rectangles that are drawn until one is smaller than the image.
const ATTEMPTS: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomErasing {
    pub probability: f64,
    pub fill: ErasingFill,
    /// The largest number of rectangles; how many is drawn, and each is smaller by that factor.
    pub count: usize,
}

impl RandomErasing {
    /// The rectangles of a sample; those of which no attempt fits into the image are left out.
    pub fn draw(&self, size: [usize; 2], key: SampleKey) -> Vec<Rectangle> {
        if key.fraction(Purpose::Erase, 0) >= self.probability {
            return Vec::new();
        }
        let count = 1 + key.draw(Purpose::EraseCount, self.count as u32);
        (0..count).filter_map(|nth| rectangle(size, key, nth, count)).collect()
    }

    /// Whether the rectangles are bytes, not an area that becomes 0.
    pub(super) fn is_written(&self) -> bool {
        self.fill != ErasingFill::Mean || self.count > 1
    }

    /// Writes `rectangles` into an image `[3, height, width]`.
    pub(super) fn write(
        &self,
        rectangles: &[Rectangle],
        image: &mut [u8],
        width: usize,
        normalization: Normalization,
        key: SampleKey,
    ) {
        let (area, mut normals) = (image.len() / CHANNELS, key.normals(Purpose::EraseColor));
        for rectangle in rectangles {
            for (channel, plane) in image.chunks_exact_mut(area).enumerate() {
                let [mean, std] = [normalization.mean, normalization.std].map(|of| f64::from(of[channel]));
                let mut level = || {
                    let value = if self.fill == ErasingFill::Mean { 0.0 } else { normals.next().unwrap_or(0.0) };
                    // The conversion saturates.
                    ((mean + std * value) * 255.0).round() as u8
                };
                let color = level();
                for row in plane.chunks_exact_mut(width).take(rectangle.rows.end).skip(rectangle.rows.start) {
                    for value in &mut row[rectangle.columns.clone()] {
                        *value = if self.fill == ErasingFill::Pixel { level() } else { color };
                    }
                }
            }
        }
    }
}

/// The rectangle `nth` of `count`.
fn rectangle(size: [usize; 2], key: SampleKey, nth: u32, count: u32) -> Option<Rectangle> {
    let attempts = nth * ATTEMPTS..(nth + 1) * ATTEMPTS;
    let [height, width] = attempts.map(|nth| sides(size, key, nth, count)).find(|sides| fits(*sides, size))?;
    let start = |purpose, side: usize, length: usize| {
        let places = (length - side + 1) as u32;
        (if nth == 0 { key.draw(purpose, places) } else { key.draw_nth(purpose, nth, places) }) as usize
    };
    let (top, left) = (start(Purpose::EraseTop, height, size[0]), start(Purpose::EraseLeft, width, size[1]));
    Some(Rectangle { rows: top..top + height, columns: left..left + width })
}

/// Height and width of the `nth` attempt, in pixels, for one of `count` rectangles.
fn sides([height, width]: [usize; 2], key: SampleKey, nth: u32, count: u32) -> [usize; 2] {
    let within = |[least, most]: [f64; 2], purpose| least + (most - least) * key.fraction(purpose, nth);
    let area = (height * width) as f64 * within(SCALE, Purpose::EraseArea) / f64::from(count);
    let ratio = within(RATIO.map(f64::ln), Purpose::EraseAspect).exp();
    [area * ratio, area / ratio].map(|square| square.sqrt().round_ties_even() as usize)
}

fn fits(sides: [usize; 2], size: [usize; 2]) -> bool {
    sides[0] < size[0] && sides[1] < size[1]
}
