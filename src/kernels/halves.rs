//! Rounding to bf16 as `half` does it, in a form that becomes vector instructions.

use half::bf16;

/// The least values that a thread rounds.
pub const LEAST_ROUNDED: usize = 1 << 14;

#[inline(always)]
pub fn half_of(value: f32) -> bf16 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    bf16::from_bits((if value.is_nan() { bits | 0x40_0000 } else { nearest } >> 16) as u16)
}

#[inline(always)]
pub fn widened(half: bf16) -> f32 {
    f32::from_bits(u32::from(half.to_bits()) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_as_everywhere() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let (ours, theirs) = (half_of(value), bf16::from_f32(value));
                assert_eq!(ours.to_bits(), theirs.to_bits(), "{value}");
            }
            let half = bf16::from_bits(high);
            let (ours, theirs) = (widened(half), half.to_f32());
            // `half` makes every NaN a quiet one.
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{half}");
        }
    }
}
