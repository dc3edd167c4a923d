//! Transposition of matrices: NCHW images to NHWC and back.

use super::square::{load, turned};
use super::{LANES, Memory, Routine, Set, Vector};

struct Transpose {
    from: *const f32,
    from_step: usize,
    to: *mut f32,
    to_step: usize,
    /// Rows and columns of the source, at least sixteen each.
    rows: usize,
    columns: usize,
}

impl Routine for Transpose {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        // The inner loop runs along the longer side, which keeps fewer streams of memory open.
        // SAFETY: passed on to the caller.
        unsafe {
            if self.rows > self.columns {
                for column in starts(self.columns) {
                    for row in starts(self.rows) {
                        self.square::<V>(row, column);
                    }
                }
            } else {
                for row in starts(self.rows) {
                    for column in starts(self.columns) {
                        self.square::<V>(row, column);
                    }
                }
            }
        }
    }
}

impl Transpose {
    #[inline(always)]
    unsafe fn square<V: Vector>(&self, row: usize, column: usize) {
        // SAFETY: passed on to the caller.
        unsafe {
            let columns = turned(load::<V>(self.from.add(row * self.from_step + column), self.from_step));
            for (i, values) in columns.into_iter().enumerate() {
                values.store(self.to.add((column + i) * self.to_step + row));
            }
        }
    }
}

/// Where squares begin; the last may overlap the one before it.
#[inline(always)]
fn starts(length: usize) -> impl Iterator<Item = usize> {
    (0..length).step_by(LANES).map(move |first| first.min(length - LANES))
}

/// Writes the transpose of a matrix of `[rows, columns]`. Rows are `from_step` values apart in `from` and `to_step` in
/// `to`.
pub fn transpose<P: Memory<f32>>(
    from: &[f32],
    from_step: usize,
    to: &mut [P],
    to_step: usize,
    [rows, columns]: [usize; 2],
) {
    if columns == from_step && columns < LANES && rows >= LANES {
        return narrow(from, to, to_step, [rows, columns]);
    }
    if rows.min(columns) < LANES {
        for (row, from) in from.chunks(from_step).take(rows).enumerate() {
            for (column, value) in from[..columns].iter().enumerate() {
                to[column * to_step + row].set(*value);
            }
        }
        return;
    }
    assert!((rows - 1) * from_step + columns <= from.len(), "the matrix lies within its memory");
    assert!((columns - 1) * to_step + rows <= to.len(), "there is room for the matrix");
    let (from, to) = (from.as_ptr(), to.as_mut_ptr().cast());
    // SAFETY: as asserted; `best` is a set of this processor.
    unsafe { Set::best().run(&Transpose { from, from_step, to, to_step, rows, columns }) };
}

/// [`transpose`] for contiguous rows that are shorter than a vector.
fn narrow<P: Memory<f32>>(from: &[f32], to: &mut [P], to_step: usize, [rows, columns]: [usize; 2]) {
    let mut turned = [0.0; LANES * LANES];
    for first in starts(rows) {
        // Padded: the vector of the last row reads beyond it.
        let mut values = [0.0; LANES * LANES];
        values[..LANES * columns].copy_from_slice(&from[first * columns..(first + LANES) * columns]);
        let (from, whole) = (values.as_ptr(), turned.as_mut_ptr());
        let square = Transpose { from, from_step: columns, to: whole, to_step: LANES, rows: LANES, columns: LANES };
        // SAFETY: sixteen vectors, each `columns` after the one before, end within `values`.
        unsafe { Set::best().run(&square) };
        for (column, turned) in turned.chunks(LANES).take(columns).enumerate() {
            let to = &mut to[column * to_step + first..][..LANES];
            to.iter_mut().zip(turned).for_each(|(to, value)| to.set(*value));
        }
    }
}
