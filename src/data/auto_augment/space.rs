//! The strengths from which torchvision's policies choose: evenly spaced levels of every operation.

use kiln_ops::images::CHANNELS;

use crate::interpolation::Interpolation;
use crate::sample_key::SampleKey;

use super::operation::{Operation, Step, is_negative};

/// The strongest level of the operations; the weakest changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Space {
    /// The index of the strongest level; the weakest has 0.
    pub last: u32,
    shear: f32,
    /// The largest shift in pixels, or else as a share of the side.
    shift: [f64; 2],
    rotate: f32,
    /// How far the factor of a blend is from 1.
    blend: f32,
    /// The bits that posterizing keeps on the weakest and on the strongest level.
    bits: [u32; 2],
}

impl Space {
    pub const RAND: Self =
        Self { last: 30, shear: 0.3, shift: [0.0, 150.0 / 331.0], rotate: 30.0, blend: 0.9, bits: [8, 4] };
    pub(super) const AUTO: Self = Self { last: 9, ..Self::RAND };
    pub(super) const TRIVIAL: Self =
        Self { last: 30, shear: 0.99, shift: [32.0, 0.0], rotate: 135.0, blend: 0.99, bits: [8, 2] };
    pub(super) const AUGMIX: Self = Self { shift: [0.0, 1.0 / 3.0], bits: [4, 0], ..Self::AUTO };

    /// The operation `nth` of a sample, with a random direction, nearest neighbours and black.
    pub(super) fn step(&self, operation: Operation, level: u32, nth: u32, size: [usize; 2], key: SampleKey) -> Step {
        let argument = self.argument(operation, level, is_negative(nth, key), size);
        Step { operation, argument, interpolation: Interpolation::Nearest, fill: [0; CHANNELS] }
    }

    /// The argument of `operation` on a level, which is at most `last`; `negative` reverses those with a direction.
    pub fn argument(&self, operation: Operation, level: u32, negative: bool, size: [usize; 2]) -> f64 {
        let signed = |most: f32| if negative { -self.at(level, 0.0, most) } else { self.at(level, 0.0, most) };
        let pixels = |length: usize| signed((self.shift[0] + self.shift[1] * length as f64) as f32).trunc();
        match operation {
            Operation::ShearX | Operation::ShearY => signed(self.shear),
            Operation::TranslateX => pixels(size[1]),
            Operation::TranslateY => pixels(size[0]),
            Operation::Rotate => signed(self.rotate),
            Operation::Brightness | Operation::Color | Operation::Contrast | Operation::Sharpness => {
                1.0 + signed(self.blend)
            }
            Operation::Posterize => {
                let [weakest, strongest] = self.bits.map(f64::from);
                weakest - (f64::from(level) * (weakest - strongest) / f64::from(self.last)).round()
            }
            Operation::Solarize => self.at(level, 255.0, 0.0),
            _ => 0.0,
        }
    }

    /// Interpolates between the weakest and the strongest level. Rounded as by `torch.linspace` on processors with
    /// fused multiply-add, because truncation to whole pixels and levels depends on the last bit.
    fn at(&self, level: u32, weakest: f32, strongest: f32) -> f64 {
        let step = f64::from((strongest - weakest) / self.last as f32);
        let (done, left) = (level, self.last - level);
        let level = if done < left {
            f64::from(weakest) + step * f64::from(done)
        } else {
            f64::from(strongest) - step * f64::from(left)
        };
        f64::from(level as f32)
    }
}
