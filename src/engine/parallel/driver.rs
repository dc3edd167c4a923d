//! Checks what CUDA needs on a machine: the driver, the compiler of kernels (NVRTC) and CUDA's headers.
//!
//! CubeCL panics on another thread if one of them is missing. They are checked once; an error names the remedy.

use std::fmt::{Display, Formatter};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use cudarc::driver::result::device::{get, get_attribute};
use cudarc::driver::{CudaContext, DriverError, sys};
use cudarc::nvrtc::sys as nvrtc;
use kiln_system::file::cache;
use kiln_system::shown;

use super::kernels::{Origin, directory};

/// The first CUDA whose driver has all functions that CubeCL calls, `cuMemAllocAsync` being the newest of them.
const OLDEST: Version = Version { major: 11, minor: 2 };

/// What CUDA needs, as found on this machine.
#[derive(Debug)]
pub(super) struct Toolchain {
    /// How many devices the driver shows.
    pub(super) devices: usize,
    compiler: Version,
    home: PathBuf,
    pub(super) kernels: Option<PathBuf>,
}

impl Display for Toolchain {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { compiler, home, kernels, .. } = self;
        write!(f, "NVRTC {compiler}, CUDA's headers in {}; it compiles the kernels in the first step", shown(home))?;
        match kernels {
            Some(kernels) => write!(f, " of a first run and keeps them in {}", shown(kernels)),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: i32,
    minor: i32,
}

impl Display for Version {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The toolchain, or what is missing and the remedy. A machine without a device needs no compiler.
pub(super) fn toolchain() -> &'static Result<Toolchain, String> {
    static FOUND: LazyLock<Result<Toolchain, String>> = LazyLock::new(|| {
        let (devices, driver) = driver()?;
        if devices == 0 {
            return Ok(Toolchain { devices, compiler: OLDEST, home: PathBuf::new(), kernels: None });
        }
        let compiler = compiler()?;
        if compiler > driver {
            return Err(format!(
                "its driver is for CUDA {driver} and cannot load kernels that NVRTC {compiler} compiles: update the \
                 driver, or put an NVRTC of CUDA {driver} or older first in LD_LIBRARY_PATH"
            ));
        }
        Ok(Toolchain { devices, compiler, home: home()?, kernels: kernels(devices, compiler) })
    });
    &FOUND
}

/// How many devices the driver shows, and the newest CUDA that it knows.
fn driver() -> Result<(usize, Version), String> {
    // SAFETY: it loads the driver's library, whose constructors may run at any time.
    if !unsafe { sys::is_culib_present() } {
        return Err("there is no NVIDIA driver (libcuda.so.1); install it, or choose another --backend".into());
    }
    let mut version = 0;
    // SAFETY: it writes one integer; it needs no initialised driver.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(explained)?;
    let version = Version { major: version / 1000, minor: version % 1000 / 10 };
    if version < OLDEST {
        return Err(format!(
            "its driver is for CUDA {version}, and {OLDEST} is the oldest that will do; update the driver"
        ));
    }
    match CudaContext::device_count() {
        Ok(count) => Ok((usize::try_from(count).unwrap_or(0), version)),
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok((0, version)),
        Err(error) => Err(explained(error)),
    }
}

/// Where this program's kernels are kept for these devices, if they can be.
fn kernels(devices: usize, compiler: Version) -> Option<PathBuf> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let capability = |index: usize| {
        let device = get(index as i32).ok()?;
        // SAFETY: the driver gave this device.
        let [major, minor] = [MAJOR, MINOR].map(|attribute| unsafe { get_attribute(device, attribute) }.ok());
        Some((major?, minor?))
    };
    let capabilities: Vec<_> = (0..devices).map(capability).collect::<Option<_>>()?;
    let program = std::fs::read(std::env::current_exe().ok()?).ok()?;
    let compiler = (compiler.major, compiler.minor);
    directory(&cache()?, &Origin { program: &program, compiler, capabilities: &capabilities })
}

fn explained(error: DriverError) -> String {
    use sys::CUresult as Code;
    let remedy = match error.0 {
        Code::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "its library and its kernel module are of two versions; restart the machine"
        }
        Code::CUDA_ERROR_STUB_LIBRARY => {
            "libcuda.so.1 is a stub for linking; take its directory out of LD_LIBRARY_PATH"
        }
        Code::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "another process uses the device exclusively (compute mode); see nvidia-smi"
        }
        _ => "see whether nvidia-smi runs, and reinstall the driver if it does not",
    };
    format!("its driver does not start ({:?}): {remedy}", error.0)
}

fn compiler() -> Result<Version, String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it loads the compiler's library, whose constructors may run at any time.
    if !unsafe { nvrtc::is_culib_present() } {
        return Err(
            "there is no NVRTC (libnvrtc.so) to compile its kernels; install CUDA's toolkit, or add the directory \
                    of PyTorch's wheel (nvidia/cuda_nvrtc/lib) to LD_LIBRARY_PATH"
                .into(),
        );
    }
    // SAFETY: it writes two integers.
    let said = unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) };
    if said == nvrtc::nvrtcResult::NVRTC_SUCCESS {
        Ok(Version { major, minor })
    } else {
        Err(format!("NVRTC: {said:?}"))
    }
}

/// The directory whose `include` holds CUDA's headers, in the places where CubeCL looks.
fn home() -> Result<PathBuf, String> {
    let there = |path: &str| Path::new(path).exists();
    let usual = ["/usr/local/cuda", "/opt/cuda"].into_iter().find(|path| there(path));
    let usual = usual.or_else(|| there("/usr/bin/nvcc").then_some("/usr")).unwrap_or("/usr/local/cuda");
    let home = std::env::var_os("CUDA_PATH").map_or_else(|| usual.into(), PathBuf::from);
    // The wheel nvidia-cuda-runtime has only the first one; kernels for matrix units need both.
    match ["cuda_runtime.h", "crt/mma.h"].iter().find(|header| !home.join("include").join(header).exists()) {
        None => Ok(home),
        Some(header) => Err(format!(
            "there is no '{}', one of CUDA's headers; install CUDA's toolkit, or set CUDA_PATH to triton/backends/nvidia \
             beside PyTorch",
            shown(home.join("include").join(header))
        )),
    }
}
