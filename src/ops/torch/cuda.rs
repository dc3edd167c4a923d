//! LibTorch's CUDA library, loaded at run time if there is an NVIDIA driver.
//!
//! Linked as burn-tch links it, every start of the program would load it with cuBLAS and cuDNN, hundreds of megabytes.
//! `shim.cpp` keeps it out of the link.

use std::sync::LazyLock;

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
