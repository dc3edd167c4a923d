//! The product that a matrix unit computes at once.
//!
//! A tile has sixteen rows of 64 bytes. One instruction (TDPBF16PS) adds to sixteen by sixteen sums the products of
//! sixteen rows of 32 values and of sixteen rows of sixteen pairs. A [`Block`] is two by two such tiles of sums: each
//! step loads two tiles of either factor for four products.

use half::bf16;

/// Rows and columns of a block of sums.
pub(super) const SIDE: usize = 2 * TILE;
/// Values of one tile's row: what one step adds up.
pub(super) const DEPTH: usize = 32;
/// Rows of a tile.
pub(super) const TILE: usize = 16;

/// `sums[row][column] += sum over steps and 32 values k of left[row][k] * right[k][column]`.
///
/// Whoever computes it needs the addresses of these values, and no other thread that uses the sums.
pub(super) struct Block<'a> {
    /// 32 rows, `left_row` values apart.
    pub(super) left: *const bf16,
    pub(super) left_row: usize,
    /// Sixteen rows of 32 columns of pairs, one after the other.
    pub(super) right: *const bf16,
    /// Where each step's factors lie behind `left` and `right`, in bytes.
    pub(super) steps: &'a [[isize; 2]],
    /// 32 rows of 32 values, `sums_row` values apart.
    pub(super) sums: *mut f32,
    pub(super) sums_row: usize,
    /// Overwrites the sums instead of adding.
    pub(super) fresh: bool,
}
