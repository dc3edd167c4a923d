//! The host's memory as kernels write it: uninitialised, and in parts by several threads.

use std::mem::MaybeUninit;

/// Memory for an f32, initialised or not.
///
/// # Safety
///
/// It has the layout of an f32.
pub unsafe trait F32Memory {
    fn set(&mut self, value: f32);
}

// SAFETY: it is an f32.
unsafe impl F32Memory for f32 {
    fn set(&mut self, value: f32) {
        *self = value;
    }
}

// SAFETY: it has the layout of an f32.
unsafe impl F32Memory for MaybeUninit<f32> {
    fn set(&mut self, value: f32) {
        self.write(value);
    }
}

/// A pointer that several threads use, each for its own part of the memory.
#[derive(Clone, Copy)]
pub(crate) struct Shared(pub(crate) *mut f32);

// SAFETY: every access through the pointer states why it is allowed.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// For values that are only read.
    pub(crate) fn of(values: &[f32]) -> Self {
        Self(values.as_ptr().cast_mut())
    }

    pub(crate) fn at(self, value: usize) -> *mut f32 {
        self.0.wrapping_add(value)
    }
}
