//! Transposition of 16 x 16 values in registers.

use super::{LANES, Vector};

/// The transpose of sixteen rows.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn turned<V: Vector>(mut rows: [V; LANES]) -> [V; LANES] {
    // The index of a value has the bits `[row][column]`. Each round rotates them by one; after four, row and column are
    // exchanged.
    for _ in 0..LANES.ilog2() {
        let before = rows;
        for i in 0..LANES / 2 {
            // SAFETY: passed on to the caller.
            [rows[2 * i], rows[2 * i + 1]] = unsafe { before[i].zip(before[i + LANES / 2]) };
        }
    }
    rows
}

/// Sixteen vectors, `step` values apart.
///
/// # Safety
///
/// The processor has the instructions of `V`, and each address is that of sixteen values.
#[inline(always)]
pub(crate) unsafe fn load<V: Vector>(from: *const f32, step: usize) -> [V; LANES] {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut rows = [V::splat(0.0); LANES];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = V::load(from.add(i * step));
        }
        rows
    }
}
