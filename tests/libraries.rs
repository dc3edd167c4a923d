//! What a start of the program takes in of other people's libraries.

use burn::backend::LibTorch;
use kiln::parallel::HostBackend;

/// Those of CUDA cost every start time and memory.
#[test]
fn libtorch_loads_nothing_of_cuda_without_a_driver() {
    LibTorch::<f32>::open(0).unwrap();
    let loaded = std::fs::read_to_string("/proc/self/maps").unwrap();
    if loaded.contains("libcuda.so") {
        return crate::command::skip("an NVIDIA driver is installed");
    }
    assert!(loaded.contains("libtorch_cpu.so") && !loaded.contains("libtorch_cuda.so"));
}
