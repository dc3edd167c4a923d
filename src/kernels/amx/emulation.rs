//! Products of tiles in plain Rust, in the order and with the rounding of Intel's TDPBF16PS (its manual, "Operation").
//!
//! The first values of all pairs are one chain of fused multiply-adds and the second values another; both begin at zero
//! for each product of tiles, and their sum is added to what was there. Every operation rounds to the nearest, the even
//! one of two; subnormal operands and results count as zero.

use super::block::{Block, SIDE, TILE};
use crate::vector::vectorized;

type Tile<T> = [[T; TILE]; TILE];

/// The contract is that of [`Block`].
pub(super) unsafe fn multiply(block: &Block) {
    let [left_row, right_row] = [block.left_row, 2 * SIDE];
    for (row, column) in [(0, 0), (0, TILE), (TILE, 0), (TILE, TILE)] {
        // SAFETY: passed on to the caller.
        unsafe {
            let at = block.sums.add(row * block.sums_row + column);
            let mut sums = if block.fresh { [[0.0; TILE]; TILE] } else { tile(at, block.sums_row) };
            for &[left, right] in block.steps {
                let left = block.left.byte_offset(left).add(row * left_row);
                let right = block.right.byte_offset(right).add(column * 2);
                let tiles = (tile(left.cast(), left_row / 2), tile(right.cast(), right_row / 2));
                vectorized(add_products, (&mut sums, &tiles.0, &tiles.1));
            }
            for (i, sums) in sums.iter().enumerate() {
                at.add(i * block.sums_row).cast::<[f32; TILE]>().write_unaligned(*sums);
            }
        }
    }
}

/// Sixteen rows, `step` values apart.
unsafe fn tile<T: Copy>(from: *const T, step: usize) -> Tile<T> {
    // SAFETY: passed on to the caller.
    std::array::from_fn(|row| unsafe { from.add(row * step).cast::<[T; TILE]>().read_unaligned() })
}

#[inline(always)]
fn add_products((sums, left, right): (&mut Tile<f32>, &Tile<u32>, &Tile<u32>)) {
    for (sums, left) in sums.iter_mut().zip(left) {
        let mut chains = [[0.0; TILE]; 2];
        for (left, right) in left.iter().zip(right) {
            for (chain, sums) in chains.iter_mut().enumerate() {
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = flushed(half(*left, chain).mul_add(half(*right, chain), *sum));
                }
            }
        }
        for (column, sum) in sums.iter_mut().enumerate() {
            *sum = flushed(flushed(*sum) + flushed(chains[0][column] + chains[1][column]));
        }
    }
}

/// One value of a pair.
#[inline(always)]
fn half(pair: u32, which: usize) -> f32 {
    flushed(f32::from_bits(if which == 0 { pair << 16 } else { pair & 0xffff_0000 }))
}

#[inline(always)]
fn flushed(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(value) } else { value }
}
