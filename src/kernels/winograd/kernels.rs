//! Kernels to frequencies, and the gradients of kernels back.
//!
//! Kernels are `[outputs, inputs, 3, 3]`. They are copied 16 by 16 through a block in which the panel's channels are
//! adjacent.

use super::strided;
use super::transform::{Kernel, KernelGradient, Line, Planes, TAPS, square};
use crate::vector::{LANES, Routine, Vector, load, prefetch, turned};

/// `[row][tap][panel's channel]`.
type Block = [f32; LANES * TAPS * LANES];

/// One panel of kernels. Its columns are its channels, its rows the channels on the other side of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel {
    /// Input channels of all kernels.
    pub(super) inputs: usize,
    pub(super) first: usize,
    pub(super) channels: usize,
    pub(super) strided: bool,
    /// For the input gradient: rows are output channels and kernels are rotated by 180 degrees.
    pub(super) turned: bool,
}

impl Panel {
    /// Offset of the kernel of a row and a channel of the panel.
    fn kernel(&self, row: usize, channel: usize) -> usize {
        let (output, input) = if self.turned { (row, self.first + channel) } else { (self.first + channel, row) };
        (output * self.inputs + input) * TAPS
    }
}

/// A panel of kernels to `[frequency][rows][channels]`.
pub(super) struct ToFrequencies {
    pub(super) panel: Panel,
    pub(super) rows: usize,
    pub(super) kernels: *const f32,
    pub(super) to: *mut f32,
    /// Values from one frequency to the next.
    pub(super) plane: usize,
}

impl Routine for ToFrequencies {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        // SAFETY: passed on to the caller.
        unsafe { if self.panel.strided { self.map::<V, strided::Kernel>() } else { self.map::<V, Kernel>() } }
    }
}

impl ToFrequencies {
    #[inline(always)]
    unsafe fn map<V: Vector, L: Line<3, 6>>(&self) {
        let mut block: Block = [0.0; LANES * TAPS * LANES];
        for channel in (0..self.panel.channels).step_by(LANES) {
            for first in (0..self.rows).step_by(LANES) {
                // SAFETY: passed on to the caller.
                unsafe {
                    self.fill::<V>(first, channel, &mut block);
                    for row in 0..LANES {
                        self.fetch(first + LANES, channel, row);
                        let from = Planes { first: block.as_mut_ptr().add(row * TAPS * LANES), step: LANES };
                        let to = self.to.add((first + row) * self.panel.channels + channel);
                        square::<V, L, 3, 6>(&from, &Planes { first: to, step: self.plane });
                    }
                }
            }
        }
    }

    /// Prefetches one of the sixteen contiguous parts of the block of kernels that begins with row `first`.
    #[inline(always)]
    fn fetch(&self, first: usize, channel: usize, number: usize) {
        let (row, lane) = if self.panel.turned { (number, 0) } else { (0, number) };
        let stretch = self.kernels.wrapping_add(self.panel.kernel(first + row, channel + lane));
        for line in 0..TAPS {
            prefetch(stretch.wrapping_add(line * LANES));
        }
    }

    #[inline(always)]
    unsafe fn fill<V: Vector>(&self, first: usize, channel: usize, block: &mut Block) {
        // SAFETY: passed on to the caller; all indices lie within the block.
        unsafe {
            if self.panel.turned {
                for row in 0..LANES {
                    let kernels = self.kernels.add(self.panel.kernel(first + row, channel));
                    // The taps of sixteen kernels, padded because the last vector reads beyond them.
                    let mut taps = [0.0; LANES * TAPS + LANES];
                    taps[..LANES * TAPS].copy_from_slice(std::slice::from_raw_parts(kernels, LANES * TAPS));
                    for (tap, lanes) in turned(load::<V>(taps.as_ptr(), TAPS))[..TAPS].iter().enumerate() {
                        lanes.store(block.as_mut_ptr().add((row * TAPS + TAPS - 1 - tap) * LANES));
                    }
                }
            } else {
                let kernels = self.kernels.add(self.panel.kernel(first, channel));
                for part in 0..TAPS {
                    let lanes = turned(load::<V>(kernels.add(part * LANES), self.panel.inputs * TAPS));
                    for (value, lanes) in lanes.iter().enumerate() {
                        lanes.store(block.as_mut_ptr().add((part * LANES + value) * LANES));
                    }
                }
            }
        }
    }
}

/// Sums `[frequency][rows][channels]` to the gradients of a panel of kernels.
pub(super) struct FromFrequencies {
    pub(super) panel: Panel,
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) from: *mut f32,
    /// Values from one frequency to the next.
    pub(super) plane: usize,
    pub(super) kernels: *mut f32,
}

impl Routine for FromFrequencies {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            if self.panel.strided { self.map::<V, strided::KernelGradient>() } else { self.map::<V, KernelGradient>() }
        }
    }
}

impl FromFrequencies {
    #[inline(always)]
    unsafe fn map<V: Vector, L: Line<6, 3>>(&self) {
        let mut block: Block = [0.0; LANES * TAPS * LANES];
        for channel in (0..self.panel.channels).step_by(LANES) {
            for first in (0..self.rows).step_by(LANES) {
                // SAFETY: passed on to the caller.
                unsafe {
                    for row in 0..LANES {
                        let to = Planes { first: block.as_mut_ptr().add(row * TAPS * LANES), step: LANES };
                        let from = self.from.add((first + row) * self.panel.channels + channel);
                        square::<V, L, 6, 3>(&Planes { first: from, step: self.plane }, &to);
                    }
                    self.take::<V>(self.first + first, channel, &block);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn take<V: Vector>(&self, first: usize, channel: usize, block: &Block) {
        // SAFETY: passed on to the caller; all indices lie within the block.
        unsafe {
            let kernels = self.kernels.add(self.panel.kernel(first, channel));
            for part in 0..TAPS {
                let values = turned(load::<V>(block.as_ptr().add(part * LANES * LANES), LANES));
                for (lane, values) in values.iter().enumerate() {
                    values.store(kernels.add(lane * self.panel.inputs * TAPS + part * LANES));
                }
            }
        }
    }
}
