//! Random erasing: blanks a rectangle of some training images (Zhong, Zheng, Kang, Li and Yang, 2020).
//!
//! Area, aspect ratio and position are drawn as by torchvision's `RandomErasing` with its defaults. The rectangle
//! becomes 0, which is the mean after normalisation.

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
}

impl RandomErasing {
    /// The rectangle of a sample; `None` also if no attempt fits into the image.
    pub fn draw(&self, size: [usize; 2], key: SampleKey) -> Option<Rectangle> {
        if key.fraction(Purpose::Erase, 0) >= self.probability {
            return None;
        }
        let [height, width] = (0..ATTEMPTS).map(|nth| sides(size, key, nth)).find(|sides| fits(*sides, size))?;
        let start = |purpose, side: usize, length: usize| key.draw(purpose, (length - side + 1) as u32) as usize;
        let (top, left) = (start(Purpose::EraseTop, height, size[0]), start(Purpose::EraseLeft, width, size[1]));
        Some(Rectangle { rows: top..top + height, columns: left..left + width })
    }
}

/// Height and width of the `nth` attempt, in pixels.
fn sides([height, width]: [usize; 2], key: SampleKey, nth: u32) -> [usize; 2] {
    let within = |[least, most]: [f64; 2], purpose| least + (most - least) * key.fraction(purpose, nth);
    let area = (height * width) as f64 * within(SCALE, Purpose::EraseArea);
    let ratio = within(RATIO.map(f64::ln), Purpose::EraseAspect).exp();
    [area * ratio, area / ratio].map(|square| square.sqrt().round_ties_even() as usize)
}

fn fits(sides: [usize; 2], size: [usize; 2]) -> bool {
    sides[0] < size[0] && sides[1] < size[1]
}
