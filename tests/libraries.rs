//! What a start of the program takes in of other people's libraries.

use burn::backend::LibTorch;
use kiln_engine::parallel::HostBackend;

use crate::command::Workplace;

/// Those of CUDA cost every start time and memory.
#[test]
fn libtorch_loads_nothing_of_cuda_without_a_driver() {
    LibTorch::<f32>::open(0).unwrap();
    let loaded = std::fs::read_to_string("/proc/self/maps").unwrap();
    if loaded.contains("libcuda.so") {
        return crate::skipped::skip("an NVIDIA driver is installed");
    }
    assert!(loaded.contains("libtorch_cpu.so") && !loaded.contains("libtorch_cuda.so"));
}

/// Long spinning makes a run crawl beside another one.
#[cfg(target_os = "linux")]
#[test]
fn openmps_threads_spin_for_a_bounded_time_unless_the_environment_says_otherwise() {
    let place = Workplace::new();
    let rounds = |variable: Option<(&str, &str)>| {
        let mut command = place.small("run", &["--backend=tch", "--dry-run"]);
        command.env("OMP_DISPLAY_ENV", "verbose").env_remove("GOMP_SPINCOUNT").env_remove("OMP_WAIT_POLICY");
        let output = command.envs(variable).output().unwrap();
        assert!(output.status.success());
        let shown = String::from_utf8(output.stderr).unwrap();
        let (_, last) = shown.rsplit_once("GOMP_SPINCOUNT = '").expect(&shown);
        last.split('\'').next().unwrap().to_string()
    };
    assert_eq!(rounds(None), "4000");
    assert_eq!(rounds(Some(("GOMP_SPINCOUNT", "7"))), "7");
    assert_eq!(rounds(Some(("OMP_WAIT_POLICY", "passive"))), "0");
}
