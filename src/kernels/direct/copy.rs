//! Copies of short rows as f32: a vector loop is faster than a call of memcpy for each.

use crate::activation::Activation;
use crate::vector::{LANES, Routine, Set, Vector};

struct Rows<T> {
    from: *const T,
    from_step: usize,
    to: *mut f32,
    to_step: usize,
    rows: usize,
    length: usize,
}

impl<T: Activation> Routine for Rows<T> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self) {
        for row in 0..self.rows {
            // SAFETY: passed on to the caller.
            unsafe {
                let (from, to) = (self.from.add(row * self.from_step), self.to.add(row * self.to_step));
                let whole = self.length / LANES * LANES;
                for i in (0..whole).step_by(LANES) {
                    T::load::<V>(from.add(i)).store(to.add(i));
                }
                for i in whole..self.length {
                    *to.add(i) = (*from.add(i)).widened();
                }
            }
        }
    }
}

/// Copies `[rows, length]` values. Rows are `from_step` values apart in `from` and `to_step` in `to`.
pub(super) fn copy_rows<T: Activation>(
    from: &[T],
    from_step: usize,
    to: &mut [f32],
    to_step: usize,
    [rows, length]: [usize; 2],
) {
    if rows == 0 || length == 0 {
        return;
    }
    let end = |step: usize| (rows - 1) * step + length;
    assert!(end(from_step) <= from.len() && end(to_step) <= to.len(), "rows lie within their memory");
    let is_one = from_step == length && to_step == length;
    let [rows, length] = if is_one { [1, rows * length] } else { [rows, length] };
    let (from, to) = (from.as_ptr(), to.as_mut_ptr());
    // SAFETY: as asserted; `best` is a set of this processor.
    unsafe { Set::best().run(&Rows { from, from_step, to, to_step, rows, length }) };
}
