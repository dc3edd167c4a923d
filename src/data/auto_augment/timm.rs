//! timm's RandAugment, which differs from torchvision's: its operations include inversions, each is applied with a
//! probability, magnitudes end at 10 and may vary, and transforms interpolate.

use std::fmt;

use kiln_ops::images::CHANNELS;
use kiln_system::with_defaults;

use crate::interpolation::Interpolation;
use crate::sample_key::{Purpose, SampleKey};

use super::operation::Operation::{self, *};
use super::operation::{Step, drawn, is_negative};

/// The operations in timm's order; a draw is an index into it.
#[rustfmt::skip]
const OPERATIONS: [Operation; 15] = [
    AutoContrast, Equalize, Invert, Rotate, Posterize, Solarize, SolarizeAdd, Color, Contrast, Brightness, Sharpness,
    ShearX, ShearY, TranslateX, TranslateY,
];

/// The magnitude of the levels that the operations are defined with.
const USUAL: f64 = 10.0;

/// A larger deviation means a uniform magnitude.
const MOST_NOISE: f64 = 100.0;

with_defaults! {
    /// What a text like `rand-m9-mstd0.5-inc1` sets.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct TimmRand {
        pub magnitude: u32 = 10,
        /// Operations per image.
        pub ops: u32 = 2,
        /// The standard deviation of the magnitude.
        pub noise: f64 = 0.0,
        /// The probability of each operation.
        pub probability: f64 = 0.5,
        /// The largest magnitude with noise.
        pub most: u32 = 10,
        /// Whether all operations get stronger with the magnitude.
        pub is_increasing: bool = false,
    }
}

impl TimmRand {
    /// Reads what follows `rand`; `None` for anything that timm does not know or that Kiln does not have.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut it = Self::default();
        let parts = if text.is_empty() { None } else { Some(text.strip_prefix('-')?.split('-')) };
        for part in parts.into_iter().flatten() {
            let (key, value) = part.split_at(part.find(|it: char| it.is_ascii_digit())?);
            let number = value.parse::<f64>().ok().filter(|number| *number <= 1000.0)?;
            let whole = || value.parse::<u32>().ok();
            match key {
                "m" => it.magnitude = whole()?,
                "n" => it.ops = whole().filter(|ops| (1..=15).contains(ops))?,
                "mstd" => it.noise = number,
                "p" => it.probability = Some(number).filter(|number| *number <= 1.0)?,
                "mmax" => it.most = whole().filter(|most| *most > 0)?,
                "inc" => it.is_increasing = whole().filter(|is| *is <= 1)? == 1,
                _ => return None,
            }
        }
        Some(it)
    }

    /// The operations of one sample; `fill` is the colour outside of the image. Without an `interpolation` each draws
    /// its own.
    pub(super) fn draw(
        &self,
        size: [usize; 2],
        fill: [u8; CHANNELS],
        interpolation: Option<Interpolation>,
        key: SampleKey,
    ) -> Vec<Step> {
        let happens = |nth: &u32| key.fraction(Purpose::OperationProbability, *nth) <= self.probability;
        let step = |nth| {
            let operation = drawn(&OPERATIONS, nth, key);
            let magnitude = f64::from(self.magnitude);
            let magnitude = if self.noise > MOST_NOISE {
                magnitude * key.fraction(Purpose::OperationLevel, nth)
            } else {
                magnitude + self.noise * key.normals(Purpose::OperationNoise).nth(nth as usize).unwrap_or(0.0)
            };
            let share = magnitude.clamp(0.0, self.most.into()) / USUAL;
            let argument = self.argument(operation, share, is_negative(nth, key), size);
            let is_cubic = key.draw_nth(Purpose::OperationSampling, nth, 2) == 1;
            let drawn = if is_cubic { Interpolation::Bicubic } else { Interpolation::Bilinear };
            Step { operation, argument, interpolation: interpolation.unwrap_or(drawn), fill }
        };
        (0..self.ops).filter(happens).map(step).collect()
    }

    /// The argument of `operation` for a `share` of the usual magnitude.
    fn argument(&self, operation: Operation, share: f64, negative: bool, size: [usize; 2]) -> f64 {
        let signed = |most: f64| if negative { -share * most } else { share * most };
        let whole = |most: f64| (share * most).trunc();
        let kept = |value: f64, most: f64| if self.is_increasing { most - value } else { value };
        match operation {
            Rotate => signed(30.0),
            ShearX | ShearY => signed(0.3),
            // timm's shift is that of what is read.
            TranslateX => -signed(0.45) * size[1] as f64,
            TranslateY => -signed(0.45) * size[0] as f64,
            Posterize => kept(whole(4.0), 4.0),
            Solarize => kept(whole(256.0).min(256.0), 256.0),
            SolarizeAdd => whole(110.0).min(128.0),
            Color | Contrast | Brightness | Sharpness if self.is_increasing => (1.0 + signed(0.9)).max(0.1),
            Color | Contrast | Brightness | Sharpness => share * 1.8 + 0.1,
            _ => 0.0,
        }
    }
}

impl fmt::Display for TimmRand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of =
            |it: &Self| [("n", it.ops.into()), ("mstd", it.noise), ("p", it.probability), ("mmax", it.most.into())];
        write!(f, "rand-m{}", self.magnitude)?;
        for ((key, value), (_, usual)) in of(self).into_iter().zip(of(&Self::default())) {
            if value != usual {
                write!(f, "-{key}{value}")?;
            }
        }
        f.write_str(if self.is_increasing { "-inc1" } else { "" })
    }
}
