//! The products at each frequency: blocks of rows whose sums stay in registers.
//!
//! A sum over channels is one chain of fused multiply-adds per product; a sum over tiles is one chain per [`CHAIN`]
//! tiles, and chains are added in order. The number of rows per block depends on the registers and does not affect any
//! sum.

use std::ops::Range;

use crate::vector::{LANES, Routine, Vector, add_products, prefetch};

/// Tiles of a chain: short chains round less than one long sum, and longer ones would be hardly faster.
pub(super) const CHAIN: usize = 32;

/// `sums[tile] += sum over channels of tiles[tile][channel] * kernels[channel]`, over a panel of outputs.
pub(super) struct OverChannels {
    /// `[channels / 16][tiles][16]`.
    pub(super) tiles: *const f32,
    /// Values from one group of sixteen channels to the next.
    pub(super) step: usize,
    pub(super) count: usize,
    pub(super) channels: usize,
    /// `[channels][panel]`.
    pub(super) kernels: *const f32,
    /// `[tiles][panel]`.
    pub(super) sums: *mut f32,
    /// Outputs of a panel: one or two vectors.
    pub(super) panel: usize,
    /// Overwrites `sums` instead of adding.
    pub(super) fresh: bool,
}

impl Routine for OverChannels {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        let blocks = self.count.div_ceil(V::ROWS);
        for block in 0..blocks {
            let rows = super::part(&(0..self.count), block, blocks);
            let wide = V::WIDE == 2 && self.panel == 2 * LANES;
            macro_rules! of_rows {
                ($($rows:literal)*) => {
                    match rows.len() {
                        $($rows if $rows <= V::ROWS => for column in (0..self.panel).step_by(LANES) {
                            // SAFETY: passed on to the caller.
                            unsafe {
                                match (wide, column) {
                                    (true, 0) => self.block::<V, $rows, 2>(rows.start, 0),
                                    (true, _) => {}
                                    (false, _) => self.block::<V, $rows, 1>(rows.start, column),
                                }
                            }
                        },)*
                        _ => unreachable!("blocks have at most `ROWS` rows"),
                    }
                };
            }
            of_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        }
    }
}

impl OverChannels {
    #[inline(always)]
    unsafe fn block<V: Vector, const ROWS: usize, const VECTORS: usize>(&self, first: usize, column: usize) {
        // SAFETY: passed on to the caller.
        unsafe {
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            let mut kernel = self.kernels.add(column);
            for sixteen in 0..self.channels / LANES {
                let tiles = self.tiles.add(sixteen * self.step + first * LANES);
                for channel in 0..LANES {
                    // The hardware prefetcher does not predict the jump to the next sixteen channels.
                    if channel < ROWS {
                        prefetch(tiles.wrapping_add(self.step + channel * LANES));
                    }
                    add_products(&mut sums, |row| tiles.add(channel + row * LANES), kernel);
                    kernel = kernel.add(self.panel);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    let to = self.sums.add((first + row) * self.panel + column + v * LANES);
                    let begun = if self.fresh { *sum } else { V::load(to).add(*sum) };
                    begun.store(to);
                }
            }
        }
    }
}

/// `sums[channel] += sum over tiles of tiles[tile][channel] * gradients[tile]`, for sixteen channels and a panel of
/// outputs.
pub(super) struct OverTiles {
    /// `[tiles][16]`.
    pub(super) tiles: *const f32,
    /// `[tiles][panel]`.
    pub(super) gradients: *const f32,
    pub(super) count: usize,
    /// `[16][panel]`.
    pub(super) sums: *mut f32,
    /// Outputs of a panel: one or two vectors.
    pub(super) panel: usize,
    /// Overwrites `sums` instead of adding.
    pub(super) fresh: bool,
}

impl Routine for OverTiles {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        for first in (0..self.count).step_by(CHAIN) {
            let chain = first..self.count.min(first + CHAIN);
            // SAFETY: passed on to the caller.
            unsafe {
                if V::WIDE == 2 && self.panel == 2 * LANES {
                    for row in (0..LANES).step_by(8) {
                        self.chain::<V, 8, 2>(chain.clone(), row, 0);
                    }
                } else {
                    for column in (0..self.panel).step_by(LANES) {
                        for row in (0..LANES).step_by(4) {
                            self.chain::<V, 4, 1>(chain.clone(), row, column);
                        }
                    }
                }
            }
        }
    }
}

impl OverTiles {
    #[inline(always)]
    unsafe fn chain<V: Vector, const ROWS: usize, const VECTORS: usize>(
        &self,
        chain: Range<usize>,
        first: usize,
        column: usize,
    ) {
        // SAFETY: passed on to the caller.
        unsafe {
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            for tile in chain.clone() {
                let gradient = self.gradients.add(tile * self.panel + column);
                add_products(&mut sums, |row| self.tiles.add(tile * LANES + first + row), gradient);
            }
            for (row, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    let to = self.sums.add((first + row) * self.panel + column + v * LANES);
                    let begun = if self.fresh && chain.start == 0 { *sum } else { V::load(to).add(*sum) };
                    begun.store(to);
                }
            }
        }
    }
}
