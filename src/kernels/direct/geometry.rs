//! The sizes of one convolution, and how its work is split.
//!
//! Every split follows from the sizes alone: neither the number of threads nor their timing changes the order of
//! additions, so results are bitwise equal on any number of threads.

use crate::pieces::ParallelFor;

/// Terms that one tile adds before it writes to memory: a panel of this many rows fits into the L1 cache. Twice as many
/// take 2 % less time and round more.
const DEPTH: usize = 192;
/// Values of a cache line.
const LINE: usize = 16;

/// One convolution: images `[batch, inputs, size]` with kernels `[outputs, inputs, kernel]`, heights before widths.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    pub batch: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub size: [usize; 2],
    pub kernel: [usize; 2],
    /// Pixels from one position of the kernel to the next, at least 1.
    pub stride: usize,
    /// Zeros added on each side of the image.
    pub padding: usize,
    pub parallel_for: ParallelFor,
}

impl Geometry {
    /// Height and width of the output. Panics when the kernel is larger than the padded image.
    pub fn output(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let room = (self.size[axis] + 2 * self.padding).checked_sub(self.kernel[axis]);
            room.expect("the kernel fits into the padded image") / self.stride + 1
        })
    }

    /// Pixels of the output.
    pub fn pixels(&self) -> usize {
        self.output().iter().product()
    }

    /// Pixels of the kernel.
    pub fn taps(&self) -> usize {
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
