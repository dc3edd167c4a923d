//! A synthetic data set of ten classes of shapes, which needs no files.
//!
//! Position, size, colours, background and noise are random, so that neither colour nor position predicts the class and
//! a linear model fails, while a small convolutional network learns it within minutes. An image depends only on (split,
//! index), not on the experiment's seed. Only operations that IEEE 754 rounds exactly are used, so that every machine
//! draws the same bytes.

use kiln_system::{Error, Result};
use rayon::prelude::*;

use super::config::DataConfig;
use super::dataset::{CHANNELS, ImageSet};
use super::normalization::Normalization;
use super::sample_key::{absorb, mix};

/// Height and width of every image, in pixels.
pub const SIDE: usize = 32;

pub const CLASSES: [&str; 10] = [
    "disc",
    "ring",
    "square",
    "triangle",
    "cross",
    "horizontal_stripes",
    "vertical_stripes",
    "checkerboard",
    "diamond",
    "dots",
];

/// Mean and standard deviation of the first 50,000 training images, equal for red, green and blue.
pub const NORMALIZATION: Normalization = Normalization { mean: [0.477; CHANNELS], std: [0.2525; CHANNELS] };

/// The version of the images: a change to them needs a new number, and a new sample in `data/`.
const GENERATOR: u64 = 1;

/// A split of the data set; the two share no image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    Train,
    Validation,
}

/// Draws both splits, of `train_size` and `val_size` images.
pub(super) fn load(config: &DataConfig) -> Result<([ImageSet; 2], Normalization)> {
    if config.train_size == 0 || config.val_size == 0 {
        let rule = "data.train_size and data.val_size must be at least 1 with --data synthetic; one of them is '0'";
        return Err(Error::usage(rule));
    }
    let splits = [draw(Split::Train, config.train_size)?, draw(Split::Validation, config.val_size)?];
    Ok((splits, NORMALIZATION))
}

/// Draws the first `len` images of a split; the class of image `i` is `i` modulo ten.
///
/// # Errors
/// [`Error::Usage`] if there are more images than a `u32` can count.
pub fn draw(split: Split, len: usize) -> Result<ImageSet> {
    let stride = CHANNELS * SIDE * SIDE;
    let labels: Vec<u32> = (0..len).map(|index| (index % CLASSES.len()) as u32).collect();
    let bytes = len.checked_mul(stride).filter(|_| u32::try_from(len).is_ok()).ok_or_else(|| {
        Error::usage(format!("'{len}' synthetic images are too many; lower data.train_size or data.val_size"))
    })?;
    let mut pixels = vec![0; bytes];
    pixels.par_chunks_exact_mut(stride).enumerate().for_each(|(index, out)| {
        let mut random = Stream::new(split, index);
        Scene::draw(&mut random).render(index % CLASSES.len(), &mut random, out);
    });
    ImageSet::new(pixels, labels, CLASSES.map(String::from).to_vec(), [SIDE, SIDE])
}

/// The sequence of random numbers of one image.
struct Stream {
    state: u64,
    count: u64,
}

impl Stream {
    fn new(split: Split, index: usize) -> Self {
        let state = [GENERATOR, split as u64, index as u64].into_iter().fold(0, absorb);
        Self { state, count: 0 }
    }

    /// A number in `low..high`, from 24 random bits, which an `f32` holds exactly.
    fn between(&mut self, low: f32, high: f32) -> f32 {
        self.count += 1;
        let unit = (mix(self.state ^ mix(self.count)) >> 40) as f32 / 16_777_216.0;
        low + (high - low) * unit
    }

    fn sign(&mut self) -> f32 {
        if self.between(0.0, 1.0) < 0.5 { -1.0 } else { 1.0 }
    }

    fn colour(&mut self, brightness: f32) -> [f32; CHANNELS] {
        [0; CHANNELS].map(|_| brightness + self.between(-0.15, 0.15))
    }
}

/// The random parameters of an image, without class and noise.
struct Scene {
    /// Column and row of the shape's middle, in pixels.
    centre: [f32; 2],
    radius: f32,
    /// The axis of the dots: horizontal (1, 0) or vertical (0, 1).
    axis: [f32; 2],
    foreground: [f32; CHANNELS],
    background: [[f32; CHANNELS]; 2],
    /// Share of the second background colour per pixel to the right and down.
    slope: [f32; 2],
}

impl Scene {
    fn draw(random: &mut Stream) -> Self {
        let radius = random.between(7.0, 12.0);
        let mut middle = || random.between(radius, SIDE as f32 - radius);
        let centre = [middle(), middle()];
        let axis = if random.sign() > 0.0 { [1.0, 0.0] } else { [0.0, 1.0] };
        // The shape is clearly lighter or clearly darker than the background, with equal probability.
        let (polarity, contrast) = (random.sign(), random.between(0.15, 0.3));
        let middle = random.between(0.4, 0.6);
        let slant = random.between(0.0, 0.1);
        Self {
            centre,
            radius,
            axis,
            foreground: random.colour(middle + polarity * contrast),
            background: [-slant, slant].map(|shade| random.colour(middle - polarity * contrast + shade)),
            slope: [0; 2].map(|_| random.between(0.0, 0.5 / SIDE as f32)),
        }
    }

    /// Draws class `class` into `out` `[3, 32, 32]`.
    fn render(&self, class: usize, random: &mut Stream, out: &mut [u8]) {
        for row in 0..SIDE {
            for column in 0..SIDE {
                let (cover, share) = (self.cover(class, column, row), self.share(column, row));
                for channel in 0..CHANNELS {
                    let [near, far] = self.background.map(|colour| colour[channel]);
                    let behind = near + (far - near) * share;
                    let value = behind + (self.foreground[channel] - behind) * cover + random.between(-0.12, 0.12);
                    out[(channel * SIDE + row) * SIDE + column] = (value.clamp(0.0, 1.0) * 255.0) as u8;
                }
            }
        }
    }

    /// The share of the second background colour in a pixel, `0..=1`.
    fn share(&self, column: usize, row: usize) -> f32 {
        self.slope[0] * column as f32 + self.slope[1] * row as f32
    }

    /// The share of a pixel that the shape covers, from four sample points.
    fn cover(&self, class: usize, column: usize, row: usize) -> f32 {
        let points = [[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]];
        let inside = points.iter().filter(|[right, down]| {
            let across = (column as f32 + right - self.centre[0]) / self.radius;
            let down = (row as f32 + down - self.centre[1]) / self.radius;
            covers(class, across, down, self.axis)
        });
        inside.count() as f32 / 4.0
    }
}

/// Whether a point lies in the shape of a class; coordinates are -1 to 1, to the right and down.
fn covers(class: usize, x: f32, y: f32, axis: [f32; 2]) -> bool {
    let (reach, squared) = (x.abs().max(y.abs()), x * x + y * y);
    let band = |along: f32, width: f32| (along + 1.0) / width % 2.0 < 1.0;
    match class {
        0 => squared < 1.0,
        1 => (0.36..1.0).contains(&squared),
        2 => reach < 0.85,
        3 => y.abs() < 0.9 && x.abs() < (y + 0.9) / 1.8,
        4 => reach < 1.0 && x.abs().min(y.abs()) < 0.3,
        5 => reach < 1.0 && band(y, 0.4),
        6 => reach < 1.0 && band(x, 0.4),
        7 => reach < 1.0 && band(x, 0.5) == band(y, 0.5),
        8 => x.abs() + y.abs() < 1.1,
        _ => {
            let near = |side: f32| (x - 0.55 * side * axis[0], y - 0.55 * side * axis[1]);
            [near(-1.0), near(1.0)].iter().any(|(x, y)| x * x + y * y < 0.2)
        }
    }
}
