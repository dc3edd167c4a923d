//! The host's memory as kernels write it: uninitialised, and in parts by several threads.

use std::mem::MaybeUninit;

/// Memory for a value, initialised or not.
///
/// # Safety
///
/// It has the layout of the value.
pub unsafe trait Memory<T> {
    fn set(&mut self, value: T);
}

// SAFETY: it is the value.
unsafe impl<T: Copy> Memory<T> for T {
    fn set(&mut self, value: T) {
        *self = value;
    }
}

// SAFETY: it has the layout of the value.
unsafe impl<T: Copy> Memory<T> for MaybeUninit<T> {
    fn set(&mut self, value: T) {
        self.write(value);
    }
}

/// A pointer that several threads use, each for its own part of the memory.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T = f32>(pub(crate) *mut T);

// SAFETY: every access through the pointer states why it is allowed.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// For values that are only read.
    pub(crate) fn of(values: &[T]) -> Self {
        Self(values.as_ptr().cast_mut())
    }

    pub(crate) fn at(self, value: usize) -> *mut T {
        self.0.wrapping_add(value)
    }
}
