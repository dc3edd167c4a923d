//! f32 to bf16 and f16 and back, value by value, in a form that becomes vector instructions.

use half::{bf16, f16};

/// The nearest bf16, the even one of two; NaN stays NaN.
#[inline(always)]
pub(crate) fn bf16_of(value: f32) -> bf16 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    bf16::from_bits((if value.is_nan() { bits | 0x40_0000 } else { nearest } >> 16) as u16)
}

#[inline(always)]
pub(crate) fn of_bf16(half: bf16) -> f32 {
    f32::from_bits(u32::from(half.to_bits()) << 16)
}

/// Bits of an f32 fraction that an f16 lacks.
const LOST: u32 = 13;
/// The difference of the exponents' offsets, as bits of an f32.
const OFFSET: u32 = (127 - 15) << 23;
/// The least normal f16.
const LEAST: u32 = 1 << 23 | OFFSET;
const INFINITY: u32 = 0x7f80_0000;

/// The nearest f16, the even one of two; NaN stays NaN.
#[inline(always)]
pub(crate) fn f16_of(value: f32) -> f16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let normal = magnitude.wrapping_sub(OFFSET).wrapping_add(0xfff + (magnitude >> LOST & 1)) >> LOST;
    // Added to this number, values lose the bits that a subnormal f16 lacks.
    let aligned = f32::from_bits((127 - 15 + LOST + 1) << 23);
    let small = (f32::from_bits(magnitude) + aligned).to_bits().wrapping_sub(aligned.to_bits());
    let special = if magnitude > INFINITY { 0x7e00 | magnitude >> LOST & 0x1ff } else { 0x7c00 };
    // What rounds to 2^16 or more is infinite.
    let finite = if magnitude < LEAST { small } else { normal };
    let half = if magnitude < OFFSET + (31 << 23) { finite } else { special };
    f16::from_bits((half | bits >> 16 & 0x8000) as u16)
}

#[inline(always)]
pub(crate) fn of_f16(half: f16) -> f32 {
    let bits = u32::from(half.to_bits());
    let magnitude = (bits & 0x7fff) << LOST;
    let subnormal = (f32::from_bits(magnitude + LEAST) - f32::from_bits(LEAST)).to_bits();
    // The largest exponent becomes the largest one.
    let normal = magnitude + if magnitude < 31 << 23 { OFFSET } else { 2 * OFFSET };
    f32::from_bits(if magnitude < 1 << 23 { subnormal } else { normal } | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::super::{LANES, Routine, Set, Vector};
    use super::*;

    /// Every upper half of an f32, with lower halves around the middles of both types.
    fn values() -> Vec<f32> {
        let lows =
            [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xf000, 0xffff];
        let all = (0..=0xffff_u32).flat_map(|high| lows.map(|low| f32::from_bits(high << 16 | low)));
        all.chain([f32::NAN, f32::from_bits(0x7fa0_1234)]).collect()
    }

    #[test]
    fn values_are_rounded_and_widened_as_everywhere() {
        for value in values() {
            assert_eq!(bf16_of(value).to_bits(), bf16::from_f32(value).to_bits(), "{value:e}");
            assert_eq!(f16_of(value).to_bits(), f16::from_f32(value).to_bits(), "{value:e}");
        }
        // `half` makes every NaN a quiet one.
        let same = |ours: f32, theirs: f32| ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
        for bits in 0..=u16::MAX {
            assert!(same(of_bf16(bf16::from_bits(bits)), bf16::from_bits(bits).to_f32()), "{bits:x}");
            assert!(same(of_f16(f16::from_bits(bits)), f16::from_bits(bits).to_f32()), "{bits:x}");
        }
    }

    /// To both types and back.
    struct ThereAndBack<'a>(&'a [f32], *mut [u16; 2], *mut [f32; 2]);

    impl Routine for ThereAndBack<'_> {
        #[inline(always)]
        unsafe fn run<V: Vector>(&self) {
            for (i, values) in self.0.chunks_exact(LANES).enumerate() {
                let (mut near, mut nearer) = ([bf16::ZERO; LANES], [f16::ZERO; LANES]);
                let (mut one, mut other) = ([0.0; LANES], [0.0; LANES]);
                // SAFETY: all are arrays of sixteen values.
                unsafe {
                    V::load(values.as_ptr()).store_bf16(near.as_mut_ptr());
                    V::load(values.as_ptr()).store_f16(nearer.as_mut_ptr());
                    V::load_bf16(near.as_ptr()).store(one.as_mut_ptr());
                    V::load_f16(nearer.as_ptr()).store(other.as_mut_ptr());
                }
                for lane in 0..LANES {
                    // SAFETY: there are as many results as values.
                    unsafe {
                        *self.1.add(i * LANES + lane) = [near[lane].to_bits(), nearer[lane].to_bits()];
                        *self.2.add(i * LANES + lane) = [one[lane], other[lane]];
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_converts_to_the_same_bits() {
        let mut values = values();
        values.truncate(values.len() / LANES * LANES);
        for set in Set::available() {
            let (mut halves, mut back) = (vec![[0; 2]; values.len()], vec![[0.0; 2]; values.len()]);
            // SAFETY: the processor has the set, and there is room for the results.
            unsafe { set.run(&ThereAndBack(&values, halves.as_mut_ptr(), back.as_mut_ptr())) };
            for ((value, halves), back) in values.iter().zip(halves).zip(back) {
                let (one, other) = (bf16_of(*value), f16_of(*value));
                assert_eq!(halves, [one.to_bits(), other.to_bits()], "{set:?}, {value:e}");
                let expected = [of_bf16(one), of_f16(other)].map(f32::to_bits);
                assert_eq!(back.map(f32::to_bits), expected, "{set:?}, {value:e}");
            }
        }
    }
}
