//! Copies of short rows: a vector loop is faster than a call of memcpy for each.

use crate::vector::{LANES, Routine, Set, Vector};

struct Rows {
    from: *const f32,
    from_step: usize,
    to: *mut f32,
    to_step: usize,
    rows: usize,
    length: usize,
}

impl Routine for Rows {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        for row in 0..self.rows {
            // SAFETY: passed on to the caller.
            unsafe {
                let (from, to) = (self.from.add(row * self.from_step), self.to.add(row * self.to_step));
                let whole = self.length / LANES * LANES;
                for i in (0..whole).step_by(LANES) {
                    V::load(from.add(i)).store(to.add(i));
                }
                for i in whole..self.length {
                    *to.add(i) = *from.add(i);
                }
            }
        }
    }
}

/// Copies `[rows, length]` values. Rows are `from_step` values apart in `from` and `to_step` in `to`.
pub(super) fn copy_rows(from: &[f32], from_step: usize, to: &mut [f32], to_step: usize, [rows, length]: [usize; 2]) {
    if rows == 0 || length == 0 {
        return;
    }
    let end = |step: usize| (rows - 1) * step + length;
    assert!(end(from_step) <= from.len() && end(to_step) <= to.len(), "rows lie within their memory");
    if from_step == length && to_step == length {
        return to[..rows * length].copy_from_slice(&from[..rows * length]);
    }
    let (from, to) = (from.as_ptr(), to.as_mut_ptr());
    // SAFETY: as asserted; `best` is a set of this processor.
    unsafe { Set::best().run(&Rows { from, from_step, to, to_step, rows, length }) };
}
