//! Rectangles in an image, for cutout, random erasing and CutMix.

use std::ops::Range;

use kiln_ops::images::Area;

/// Rows and columns within an image, in pixels; may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rectangle {
    /// Rows, from the top.
    pub rows: Range<usize>,
    /// Columns, from the left.
    pub columns: Range<usize>,
}

impl Rectangle {
    /// `sides` (rows, columns) around a pixel `centre` (row, column), clipped to an image of `size`.
    pub(super) fn around(centre: [usize; 2], sides: [usize; 2], size: [usize; 2]) -> Self {
        let [rows, columns] = [0, 1].map(|axis| {
            let end = centre[axis].saturating_add(sides[axis].div_ceil(2)).min(size[axis]);
            centre[axis].saturating_sub(sides[axis] / 2)..end
        });
        Self { rows, columns }
    }

    /// Its ends, which a batch stores for each image.
    pub(super) fn bounds(&self) -> Area {
        [self.rows.start, self.rows.end, self.columns.start, self.columns.end].map(|at| at as u16)
    }
}
