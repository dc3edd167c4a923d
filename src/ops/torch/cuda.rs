//! LibTorch's CUDA library, loaded at run time if there is an NVIDIA driver, and copies for which neither a thread nor
//! the device waits.
//!
//! Linked as burn-tch links it, every start of the program would load it with cuBLAS and cuDNN, hundreds of megabytes.
//! `shim.cpp` keeps it out of the link.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::LazyLock;

use burn::tensor::DType;
use tch::{Device, Tensor};

use super::{Pointer, check, owned};
use crate::traffic::writing;

unsafe extern "C" {
    fn kiln_to_cuda(y: *mut Pointer, x: Pointer, index: c_int) -> *mut c_char;
    fn kiln_record(event: *mut Pointer, x: Pointer) -> *mut c_char;
    fn kiln_wait(event: Pointer) -> *mut c_char;
    fn kiln_forget(event: Pointer);
    fn kiln_choose_kernels(deterministic: c_int);
}

/// How many CUDA devices LibTorch can use. LibTorch looks for its CUDA library once: call this before any other of its
/// functions that involves devices.
pub fn cuda_devices() -> usize {
    static COUNT: LazyLock<usize> = LazyLock::new(|| {
        #[cfg(target_os = "linux")]
        let _ = loaded(c"libcuda.so.1") && loaded(c"libtorch_cuda.so");
        usize::try_from(tch::Cuda::device_count()).unwrap_or(0)
    });
    *COUNT
}

/// Loads a library permanently, with its symbols visible to all others; returns whether it was found.
#[cfg(target_os = "linux")]
fn loaded(name: &std::ffi::CStr) -> bool {
    // SAFETY: the libraries are the driver's and LibTorch's, whose constructors may run at any time.
    !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null()
}

/// Lets cuDNN time its convolutions once per shape and take the fastest, or only those that compute the same bits every
/// time.
pub fn choose_kernels(deterministic: bool) {
    // SAFETY: it sets two values of LibTorch's configuration.
    unsafe { kiln_choose_kernels(c_int::from(deterministic)) };
}

/// The values on a device. To CUDA they go by way of pinned memory.
pub fn upload<T: tch::kind::Element>(values: &[T], shape: &[i64], device: Device) -> Tensor {
    let _copy = writing(size_of_val(values), DType::U8);
    let Device::Cuda(index) = device else { return Tensor::from_slice(values).view(shape) };
    let mut uploaded = null_mut();
    // SAFETY: the tensor borrows `values` until it is dropped here; the shim copies them before it returns.
    let host = unsafe { Tensor::from_blob(values.as_ptr().cast(), shape, &strides(shape), T::KIND, Device::Cpu) };
    // SAFETY: the result is written before the call returns without a message.
    check(unsafe { kiln_to_cuda(&mut uploaded, host.as_ptr().cast_mut().cast(), index as c_int) });
    owned(uploaded).tensor
}

/// Those of a contiguous tensor.
fn strides(shape: &[i64]) -> Vec<i64> {
    (1..=shape.len()).map(|after| shape[after..].iter().product()).collect()
}

/// The end of all that this thread has queued on a tensor's device.
pub(super) struct Event(*mut c_void);

// SAFETY: LibTorch's events may be used by another thread than the one that recorded them.
unsafe impl Send for Event {}

impl Event {
    /// The end of the queue of the device that `x` is on.
    pub(super) fn behind(x: &Tensor) -> Self {
        let mut event = null_mut();
        // SAFETY: the event is written before the call returns without a message.
        check(unsafe { kiln_record(&mut event, x.as_ptr().cast_mut().cast()) });
        Self(event)
    }

    /// Waits until the device is there.
    pub(super) fn wait(&self) {
        // SAFETY: the event lives as long as `self`.
        check(unsafe { kiln_wait(self.0) });
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is not used after this.
        unsafe { kiln_forget(self.0) };
    }
}
