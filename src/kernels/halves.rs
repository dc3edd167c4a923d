//! Tensors of 16 bits, rounded as Burn does it.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::vector::{bf16_of, of_bf16, vectorized};

/// The least values that a thread rounds.
pub const LEAST_ROUNDED: usize = 1 << 14;

/// [`bf16::from_f64`], by which Burn rounds: it does not see what lies more than 20 bits after the leading one.
#[inline(always)]
fn half_of_f64(value: f32) -> bf16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let unseen = if magnitude < 0x80_0000 { magnitude >> 21 | magnitude >> 22 } else { 7 };
    bf16_of(if value.is_nan() { value } else { f32::from_bits(bits & !unseen) })
}

#[inline(always)]
fn round((values, halves): (&[f32], &mut [bf16])) {
    halves.iter_mut().zip(values).for_each(|(half, value)| *half = half_of_f64(*value));
}

/// A type of 16 bits, converted as Burn does it.
pub trait Half: Copy + Default + Send + Sync {
    /// Rounds as many values.
    fn narrow(values: &[f32], halves: &mut [Self]);

    fn widen(halves: &[Self], values: &mut [f32]);
}

impl Half for bf16 {
    fn narrow(values: &[f32], halves: &mut [Self]) {
        vectorized(round, (values, halves));
    }

    fn widen(halves: &[Self], values: &mut [f32]) {
        values.iter_mut().zip(halves).for_each(|(value, half)| *value = of_bf16(*half));
    }
}

impl Half for f16 {
    fn narrow(values: &[f32], halves: &mut [Self]) {
        halves.convert_from_f32_slice(values);
    }

    fn widen(halves: &[Self], values: &mut [f32]) {
        halves.convert_to_f32_slice(values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burn_rounds_by_f64() {
        for high in 0..=u16::MAX {
            let lows = (0..16).flat_map(|bit| [1 << bit, 0xffff >> bit, 0x8000 | 1 << bit]);
            let values: Vec<f32> = lows.map(|low| f32::from_bits(u32::from(high) << 16 | low)).collect();
            let mut halves = vec![bf16::ZERO; values.len()];
            bf16::narrow(&values, &mut halves);
            for (value, half) in values.iter().zip(halves) {
                assert_eq!(half.to_bits(), bf16::from_f64((*value).into()).to_bits(), "{value}");
            }
        }
    }
}
