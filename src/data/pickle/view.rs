//! A tensor as PyTorch stores it: a view of a storage with offset, shape and stride.

use std::borrow::Cow;

use safetensors::Dtype;

/// One-dimensional memory that tensors may share.
#[derive(Debug, Clone, Copy)]
pub struct Storage<'a> {
    /// Its name in the file.
    pub key: &'a str,
    pub dtype: Dtype,
    /// The stated number of elements.
    pub elements: usize,
}

impl Storage<'_> {
    /// Bytes per element.
    pub fn width(&self) -> usize {
        self.dtype.bitsize() / 8
    }
}

/// The elements of a storage that form a tensor.
#[derive(Debug, Clone)]
pub struct View<'a> {
    pub storage: Storage<'a>,
    /// The index of the first element.
    pub offset: usize,
    pub shape: Vec<usize>,
    /// Stride of each axis, in elements.
    pub stride: Vec<usize>,
}

impl View<'_> {
    /// The number of elements; `None` if it overflows.
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |product, axis| product.checked_mul(*axis))
    }

    /// Its elements in row-major order, from the `bytes` of its storage; `None` if it exceeds them.
    ///
    /// Allocates at most [`View::elements`] elements; the caller must limit that number.
    pub fn gather<'d>(&self, bytes: &'d [u8]) -> Option<Cow<'d, [u8]>> {
        let (len, width) = (self.elements()?, self.storage.width());
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

    /// Whether the elements are contiguous; the stride of an axis of length 1 is ignored.
    fn is_row_major(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.stride).rev().filter(|(axis, _)| **axis != 1).all(|(axis, stride)| {
            let is_next = *stride == expected;
            expected *= axis;
            is_next
        })
    }

    /// The index in the storage of the element at `index` in row-major order.
    fn position(&self, mut index: usize) -> usize {
        self.shape.iter().zip(&self.stride).rev().fold(self.offset, |at, (axis, stride)| {
            let along = index % axis;
            index /= axis;
            at + along * stride
        })
    }
}
