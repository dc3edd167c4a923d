//! LibTorch's CUDA library, which is loaded where an NVIDIA driver is found and nowhere else.
//!
//! Linked in, as burn-tch has it, it would come with cuBLAS, cuDNN and hundreds of megabytes at every start of the
//! program. `shim.cpp` keeps it out of the link.

use std::sync::LazyLock;

/// How many CUDA devices LibTorch can use. LibTorch looks for its library once: ask before anything else of it that has
/// to do with devices.
pub fn cuda_devices() -> usize {
    static COUNT: LazyLock<usize> = LazyLock::new(|| {
        #[cfg(target_os = "linux")]
        let _ = loaded(c"libcuda.so.1") && loaded(c"libtorch_cuda.so");
        usize::try_from(tch::Cuda::device_count()).unwrap_or(0)
    });
    *COUNT
}

/// Loads a library for good, its symbols for all; whether it could be found.
#[cfg(target_os = "linux")]
fn loaded(name: &std::ffi::CStr) -> bool {
    // SAFETY: the libraries are the driver's and LibTorch's, whose constructors may run at any time.
    !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null()
}
