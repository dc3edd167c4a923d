//! The sizes of one convolution, and how its work is split.
//!
//! Every split follows from the sizes alone: neither the number of threads nor their timing changes the order of
//! additions, so results are bitwise equal on any number of threads.

use crate::ops::pieces::ParallelFor;
use crate::ops::sliding::Sliding;

/// Terms that one tile adds before it writes to memory: a panel of this many rows fits into the L1 cache. Twice as many take
/// 2 % less time and round more.
const DEPTH: usize = 192;
/// Values of a cache line.
const LINE: usize = 16;

/// One convolution: `[batch, inputs, size]` with a kernel `[outputs, inputs, kernel]`, heights before widths.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Geometry {
    pub(in crate::ops) batch: usize,
    pub(in crate::ops) inputs: usize,
    pub(in crate::ops) outputs: usize,
    pub(in crate::ops) size: [usize; 2],
    pub(in crate::ops) kernel: [usize; 2],
    pub(in crate::ops) sliding: Sliding,
    pub(in crate::ops) parallel_for: ParallelFor,
}

impl Geometry {
    /// Height and width of the output. Panics when the kernel is larger than the padded image.
    pub(in crate::ops) fn output(&self) -> [usize; 2] {
        let Sliding { stride, padding, .. } = self.sliding;
        [0, 1].map(|axis| {
            let room = (self.size[axis] + 2 * padding).checked_sub(self.kernel[axis]);
            room.expect("the kernel fits into the padded image") / stride + 1
        })
    }

    /// Pixels of the output.
    pub(in crate::ops) fn pixels(&self) -> usize {
        self.output().iter().product()
    }

    /// Pixels of the kernel.
    pub(in crate::ops) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }
}

/// Images per task, so that it has at least `enough` pixels.
pub(super) fn images_at_once(batch: usize, pixels: usize, enough: usize) -> usize {
    enough.div_ceil(pixels).clamp(1, batch)
}

/// The size of equal parts of `total` such that `each` times the size is at most [`DEPTH`], if possible; a multiple of
/// a cache line if it is longer than one.
pub(super) fn part(total: usize, each: usize) -> usize {
    let most = (DEPTH / each).max(1);
    let part = total.div_ceil(total.div_ceil(most));
    if part > LINE { part / LINE * LINE } else { part }
}
