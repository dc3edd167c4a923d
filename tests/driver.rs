//! What is said where CUDA's driver, its compiler or its headers will not do: with stand-ins for them.

use std::path::Path;

use tempfile::tempdir;

use crate::command::{Workplace, errors};
use crate::compiled::{before_others, compiled};

#[test]
fn a_driver_that_will_not_do_is_refused_with_the_remedy() {
    let (place, workplace) = (tempdir().unwrap(), Workplace::new());
    // By the names that are looked for first; the compiler is in the same file.
    let [driver, compiler] = ["libcuda.so", "libnvrtc.so"].map(|name| place.path().join(name));
    if !compiled("driver.c", &driver) {
        return;
    }
    std::fs::copy(driver, compiler).unwrap();
    std::fs::create_dir_all(place.path().join("include/crt")).unwrap();
    for header in ["include/cuda_runtime.h", "include/crt/mma.h"] {
        std::fs::write(place.path().join(header), "").unwrap();
    }
    let refused = |fault: &str, toolkit: &Path, parts: &[&str]| {
        let mut train = workplace.small("run", &["--backend=cuda", "--dry-run"]);
        train.env("LD_LIBRARY_PATH", before_others(place.path())).env("CUDA_PATH", toolkit).env("KILN_STAND_IN", fault);
        let output = train.output().unwrap();
        let lines = errors(&output);
        assert_eq!((output.status.code(), lines.len()), (Some(2), 1), "{fault}: {lines:?}");
        parts.iter().for_each(|part| assert!(lines[0].contains(part), "{fault}: '{part}' is not in {lines:?}"));
    };
    let toolkit = place.path();
    refused("old", toolkit, &["driver is for CUDA 11.0", "11.2 is the oldest", "update the driver"]);
    refused("mismatch", toolkit, &["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine"]);
    refused("none", toolkit, &["no device '0'", "no device is visible", "another --backend"]);
    refused("newer", toolkit, &["driver is for CUDA 12.4", "NVRTC 12.8", "update the driver"]);
    refused("nothing", Path::new("/nowhere"), &["no '/nowhere/include/cuda_runtime.h'", "set CUDA_PATH"]);
}
