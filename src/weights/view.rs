//! A tensor as PyTorch stores it: a view of a storage, by offset, shape and stride.
//!
//! Turns a view into elements in row-major order, and refuses one that leaves its storage. Where storages come from is
//! for `pth`, what their bytes mean for `crate::state`.

use std::borrow::Cow;

use safetensors::Dtype;

/// The one-dimensional memory that tensors share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Storage<'a> {
    /// Its name in the file.
    pub key: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// How many elements it is said to have.
    pub elements: usize,
}

impl Storage<'_> {
    /// Bytes per element.
    pub fn width(&self) -> usize {
        self.dtype.bitsize() / 8
    }
}

/// Which elements of a storage a tensor shows.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// The memory.
    pub storage: Storage<'a>,
    /// The first element.
    pub offset: usize,
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// Distance between neighbours along each axis, in elements.
    pub stride: Vec<usize>,
}

impl View<'_> {
    /// How many elements it shows; none if that is no number of this machine.
    pub fn len(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |product, axis| product.checked_mul(*axis))
    }

    /// Its elements in row-major order, out of the `bytes` of its storage; none if it leaves them.
    ///
    /// Allocates [`View::len`] elements at most: the caller has checked that number.
    pub fn gather<'d>(&self, bytes: &'d [u8]) -> Option<Cow<'d, [u8]>> {
        let (len, width) = (self.len()?, self.storage.width());
        if len == 0 {
            return Some(Cow::Borrowed(&[]));
        }
        let reach = |at: usize, (axis, stride): (&usize, &usize)| at.checked_add((axis - 1).checked_mul(*stride)?);
        let last = self.shape.iter().zip(&self.stride).try_fold(self.offset, reach)?;
        let end = last.checked_add(1)?.checked_mul(width)?;
        let seen = bytes.get(..end)?;
        if self.is_row_major() {
            return Some(Cow::Borrowed(&seen[self.offset * width..]));
        }
        let mut gathered = Vec::with_capacity(len * width);
        for index in 0..len {
            gathered.extend_from_slice(&seen[self.position(index) * width..][..width]);
        }
        Some(Cow::Owned(gathered))
    }

    /// Whether neighbours in row-major order are neighbours in the storage; the stride of a single element is moot.
    fn is_row_major(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.stride).rev().filter(|(axis, _)| **axis != 1).all(|(axis, stride)| {
            let is_next = *stride == expected;
            expected *= axis;
            is_next
        })
    }

    /// Where in the storage the element at `index` of the row-major order is.
    fn position(&self, mut index: usize) -> usize {
        self.shape.iter().zip(&self.stride).rev().fold(self.offset, |at, (axis, stride)| {
            let along = index % axis;
            index /= axis;
            at + along * stride
        })
    }
}
