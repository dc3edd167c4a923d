//! Squares of sixteen by sixteen values with their rows as columns, in registers.

use super::vector::{LANES, Vector};

/// Sixteen rows as sixteen columns.
///
/// # Safety
///
/// The processor has the registers of `V`.
#[inline(always)]
pub(super) unsafe fn square<V: Vector>(mut rows: [V; LANES]) -> [V; LANES] {
    // As bits, the number of a value is `[row][column]`. Each time it turns by one; after four, row and column have
    // changed places.
    for _ in 0..LANES.ilog2() {
        let before = rows;
        for i in 0..LANES / 2 {
            // SAFETY: passed on to the caller.
            [rows[2 * i], rows[2 * i + 1]] = unsafe { before[i].zip(before[i + LANES / 2]) };
        }
    }
    rows
}

/// Sixteen vectors that are so far apart.
///
/// # Safety
///
/// The processor has the registers of `V`, and there are sixteen values at each place.
#[inline(always)]
pub(super) unsafe fn load<V: Vector>(from: *const f32, step: usize) -> [V; LANES] {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut rows = [V::splat(0.0); LANES];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = V::load(from.add(i * step));
        }
        rows
    }
}
