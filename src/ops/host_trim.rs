//! Trimming of kernels in the host's memory, for the backends whose tensors lie there.
//!
//! The outer loop runs over the few values of a kernel, the inner one over many kernels, which stay in the cache.

use std::mem::MaybeUninit;

use super::pieces::{ParallelFor, on_pieces};
use super::trim::Trim;

const KERNELS: usize = 1 << 11;

/// Copies the trimmed part of the kernels `whole` to `part`.
pub(super) fn crop<T: Copy + Send + Sync>(
    trim: &Trim,
    whole: &[T],
    part: &mut [MaybeUninit<T>],
    parallel_for: ParallelFor,
) {
    let (area, part_area) = areas(trim);
    let pieces = whole.chunks(KERNELS * area).zip(part.chunks_mut(KERNELS * part_area));
    on_pieces(pieces, parallel_for, |(whole, part)| {
        for (from, to) in places(trim) {
            for (whole, part) in whole.chunks_exact(area).zip(part.chunks_exact_mut(part_area)) {
                part[to].write(whole[from]);
            }
        }
    });
}

/// The inverse of [`crop`], with zeros elsewhere.
pub(super) fn pad<T: Copy + Default + Send + Sync>(
    trim: &Trim,
    part: &[T],
    whole: &mut [MaybeUninit<T>],
    parallel_for: ParallelFor,
) {
    let (area, part_area) = areas(trim);
    let pieces = part.chunks(KERNELS * part_area).zip(whole.chunks_mut(KERNELS * area));
    on_pieces(pieces, parallel_for, |(part, whole)| {
        whole.fill(MaybeUninit::new(T::default()));
        for (to, from) in places(trim) {
            for (part, whole) in part.chunks_exact(part_area).zip(whole.chunks_exact_mut(area)) {
                whole[to].write(part[from]);
            }
        }
    });
}

/// Values of a kernel and of its trimmed part.
fn areas(trim: &Trim) -> (usize, usize) {
    (trim.whole[2] * trim.whole[3], trim.rows.len() * trim.columns.len())
}

/// Index pairs of each trimmed value: in the whole kernel and in the part.
fn places(trim: &Trim) -> impl Iterator<Item = (usize, usize)> {
    let in_row = move |row: usize| trim.columns.clone().map(move |column| row * trim.whole[3] + column);
    trim.rows.clone().flat_map(in_row).zip(0..)
}
