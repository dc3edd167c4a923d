//! Kernels without the rows and columns that only meet padding.
//!
//! If a convolution's output is one pixel, the kernel has one position, and its part outside of the image is multiplied
//! by zeros and has a zero gradient. In the last stage of a network for small images, with maps of one pixel, only one
//! ninth of a 3x3 kernel lies on the image, and reading the rest takes longer than computing.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::pieces::{ParallelFor, on_pieces};

/// The outer loop runs over the few values of a kernel, the inner one over as many kernels as stay in the cache.
const KERNELS: usize = 1 << 11;

/// The part of kernels `[outputs, inputs, height, width]` that lies on the image.
#[derive(Debug, Clone)]
pub struct Trim {
    pub whole: [usize; 4],
    /// The rows that lie on the image.
    pub rows: Range<usize>,
    /// The columns that lie on the image.
    pub columns: Range<usize>,
}

impl Trim {
    /// For images `[batch, inputs, height, width]`; `None` if the whole kernel lies on the image or the output is
    /// larger than one pixel. A trimmed kernel needs no padding.
    pub fn of(x: [usize; 4], whole: [usize; 4], stride: usize, padding: usize) -> Option<Self> {
        let on_image = |axis: usize| {
            let (size, kernel) = (x[axis], whole[axis]);
            let is_pixel = size + 2 * padding < kernel + stride;
            (is_pixel && padding < kernel).then(|| padding..kernel.min(size + padding))
        };
        let (rows, columns) = (on_image(2)?, on_image(3)?);
        let is_whole = [rows.len(), columns.len()] == [whole[2], whole[3]];
        (!is_whole).then_some(Self { whole, rows, columns })
    }

    /// The shape of the trimmed kernels.
    pub fn part(&self) -> [usize; 4] {
        [self.whole[0], self.whole[1], self.rows.len(), self.columns.len()]
    }

    /// Copies the trimmed part of the kernels `whole` to `part`.
    pub fn crop<T: Copy + Send + Sync>(&self, whole: &[T], part: &mut [MaybeUninit<T>], parallel_for: ParallelFor) {
        let (area, part_area) = self.areas();
        let pieces = whole.chunks(KERNELS * area).zip(part.chunks_mut(KERNELS * part_area));
        on_pieces(pieces, parallel_for, |(whole, part)| {
            for (from, to) in self.places() {
                for (whole, part) in whole.chunks_exact(area).zip(part.chunks_exact_mut(part_area)) {
                    part[to].write(whole[from]);
                }
            }
        });
    }

    /// The inverse of [`Trim::crop`], with zeros elsewhere.
    pub fn pad<T: Copy + Default + Send + Sync>(
        &self,
        part: &[T],
        whole: &mut [MaybeUninit<T>],
        parallel_for: ParallelFor,
    ) {
        let (area, part_area) = self.areas();
        let pieces = part.chunks(KERNELS * part_area).zip(whole.chunks_mut(KERNELS * area));
        on_pieces(pieces, parallel_for, |(part, whole)| {
            whole.fill(MaybeUninit::new(T::default()));
            for (to, from) in self.places() {
                for (part, whole) in part.chunks_exact(part_area).zip(whole.chunks_exact_mut(area)) {
                    whole[to].write(part[from]);
                }
            }
        });
    }

    /// Values of a kernel and of its trimmed part.
    fn areas(&self) -> (usize, usize) {
        (self.whole[2] * self.whole[3], self.rows.len() * self.columns.len())
    }

    /// Index pairs of each trimmed value: in the whole kernel and in the part.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let in_row = move |row: usize| self.columns.clone().map(move |column| row * self.whole[3] + column);
        self.rows.clone().flat_map(in_row).zip(0..)
    }
}
