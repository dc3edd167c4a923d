//! Rectangles in an image, for cutout, random erasing and CutMix.

use std::ops::Range;

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

    /// Number of pixels.
    pub fn area(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// Sets it to 0 in each plane of `image` `[3, height, width]`.
    pub(super) fn blank(&self, image: &mut [f32], size: [usize; 2]) {
        self.spans(image.len(), size).for_each(|span| image[span].fill(0.0));
    }

    /// Copies it from `other` to `image` in each plane, both `[3, height, width]`.
    pub(super) fn copy(&self, image: &mut [f32], other: &[f32], size: [usize; 2]) {
        self.spans(image.len(), size).for_each(|span| image[span.clone()].copy_from_slice(&other[span]));
    }

    /// Its part of every row of every plane, as indices into `length` values.
    fn spans(&self, length: usize, [height, width]: [usize; 2]) -> impl Iterator<Item = Range<usize>> {
        let Self { rows, columns } = self.clone();
        (0..length).step_by((height * width).max(1)).flat_map(move |plane| {
            let columns = columns.clone();
            rows.clone().map(move |row| plane + row * width + columns.start..plane + row * width + columns.end)
        })
    }
}
