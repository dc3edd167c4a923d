//! The backends that Kiln trains on, and their devices as numbered by `--gpu-ids`.
//!
//! On a CPU backend an id is a slot; all slots share the processor. On a GPU backend it is an index among the visible
//! devices (see `CUDA_VISIBLE_DEVICES`), in the order of `nvidia-smi` unless `CUDA_DEVICE_ORDER` is set.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use std::path::Path;

use kiln_ops::{Graph, ImageOps, Precision, TrainBackend, UpdateOps};
use kiln_system::{Error, Result};

use super::World;

/// A backend on whose devices replicas can be placed.
pub trait HostBackend: TrainBackend + UpdateOps + ImageOps {
    /// The device with this index among the visible ones.
    fn open(index: usize) -> Result<Self::Device>;

    /// The name of the device with this index, for people.
    fn describe(index: usize) -> String;

    /// The libraries of its devices, if they are not part of the program.
    fn libraries() -> Option<String> {
        None
    }

    /// Chooses between the fastest kernels and those that compute the same bits in every run, where a library has both.
    fn choose_kernels(_deterministic: bool) {}

    /// Lets cuDNN compute the convolutions on the one device of the run.
    fn use_cudnn(_index: usize) -> std::result::Result<(), String> {
        Err("that takes the backend cuda".into())
    }

    /// An empty graph for the device with this index, whose steps can be recorded.
    fn graph(_index: usize) -> std::result::Result<Box<dyn Graph>, String> {
        Err("that takes the backend tch".into())
    }

    /// Runs the `work` of one of `replicas` replicas, whose operations use its share of `threads` threads.
    fn on_threads<R: Send>(_threads: usize, _replicas: usize, work: impl FnOnce() -> R + Send) -> R {
        work()
    }

    /// Whether its devices have instructions for `precision`, as GPUs are expected to.
    fn is_fast_in(precision: Precision) -> bool {
        precision == Precision::F32 || !Self::is_processor()
    }

    /// Keeps the operations of the calling thread, which is no replica's, on that thread where a team of its own would
    /// slow the replicas' teams down.
    fn stay_on_one_thread() {}
}

/// Checks that every device of `world` is there. A processor has one slot per replica, numbered like the replicas.
pub fn check_devices<B: HostBackend>(world: &World) -> Result<()> {
    for index in &world.devices {
        B::open(*index)?;
        let slots = world.size * world.stages;
        let of = if world.stages > 1 { "replica and stage" } else { "replica" };
        if B::is_processor() && *index >= slots {
            return Err(Error::usage(format!(
                "there is no device '{index}': the CPU offers one slot per {of}, here 0 to {}; choose among them with \
                 --gpu-ids, or raise --world-size",
                slots - 1
            )));
        }
    }
    Ok(())
}

/// Checks that every device of `world` computes in `precision`.
pub fn check_precision<B: HostBackend>(world: &World, precision: Precision) -> Result<()> {
    for index in &world.devices {
        let device = B::open(*index)?;
        let can = |kind: &Precision| B::supports_dtype(&device, kind.dtype());
        if !can(&precision) {
            let kinds = [Precision::F32, Precision::Bf16, Precision::F16].into_iter().filter(can);
            let names: Vec<&str> = kinds.map(Precision::name).collect();
            return Err(Error::usage(format!(
                "{} does not support {}; use --precision {}",
                B::describe(*index),
                precision.name(),
                names.join(", ")
            )));
        }
    }
    Ok(())
}

/// Checks that steps can be recorded on every device of `world`.
pub fn check_graph<B: HostBackend>(world: &World) -> Result<()> {
    let refused = |why| format!("steps cannot be recorded: {why}; train with --cuda-graph off");
    world.devices.iter().try_for_each(|index| B::graph(*index).map(drop).map_err(|why| Error::usage(refused(why))))
}

#[cfg(any(feature = "tch", feature = "cuda", feature = "wgpu"))]
fn no_such_device(backend: &str, index: usize, visible: usize) -> Error {
    let rule = match visible {
        0 => "no device is visible to it; check its driver, or choose another --backend".into(),
        1 => "the only visible device is 0; choose it with --gpu-ids 0".into(),
        n => format!("the visible devices are 0 to {}; choose others with --gpu-ids", n - 1),
    };
    Error::usage(format!("the {backend} backend has no device '{index}': {rule}"))
}

/// Before a CubeCL device is opened. Replicas share its tensors only if all threads use one stream of it. `kernels` is
/// where compiled ones are kept.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn prepare(kernels: Option<&Path>) -> Result<()> {
    let reason = "CubeCL has been used before Kiln opened a device, with several streams: open Kiln's devices first, or \
                  set 'max_streams = 1' under [streaming] in cubecl.toml";
    super::remedy::note_device_panics();
    kiln_ops::use_one_stream(kernels).then_some(()).ok_or_else(|| Error::usage(reason))
}

/// The threads of one of `replicas` replicas.
#[cfg(any(feature = "flex", feature = "tch"))]
fn share(threads: usize, replicas: usize) -> usize {
    (threads / replicas).max(1)
}

/// The CPU's name for the plan.
#[cfg(any(feature = "flex", feature = "tch"))]
fn cpu_slot(index: usize) -> String {
    format!("CPU slot {index} (slots share the processor)")
}

#[cfg(feature = "flex")]
mod flex {
    use kiln_kernels::MatrixUnit;
    use rayon::ThreadPoolBuilder;

    use super::{HostBackend, Precision, Result, cpu_slot, share};

    impl HostBackend for burn_flex::Flex {
        fn open(_index: usize) -> Result<Self::Device> {
            Ok(burn_flex::FlexDevice)
        }

        fn describe(index: usize) -> String {
            cpu_slot(index)
        }

        fn is_fast_in(precision: Precision) -> bool {
            precision == Precision::F32 || (precision == Precision::Bf16 && MatrixUnit::of_machine().is_some())
        }

        /// In a pool of the replica's own: it computes itself, instead of waking others and sleeping until they are
        /// done.
        fn on_threads<R: Send>(threads: usize, replicas: usize, work: impl FnOnce() -> R + Send) -> R {
            let name = std::thread::current().name().unwrap_or("compute").to_string();
            let pool =
                ThreadPoolBuilder::new().num_threads(share(threads, replicas)).thread_name(move |_| name.clone());
            match pool.build() {
                Ok(pool) => pool.install(work),
                // The machine has no threads left: the work is done by the pool of all replicas.
                Err(_) => work(),
            }
        }
    }
}

#[cfg(feature = "tch")]
mod tch {
    use super::{HostBackend, Precision, Result, cpu_slot, no_such_device, share};
    use burn_tch::LibTorchDevice;
    use kiln_ops::{Graph, cuda_devices as visible};

    impl HostBackend for burn_tch::LibTorch<f32> {
        fn open(index: usize) -> Result<LibTorchDevice> {
            match visible() {
                0 => Ok(LibTorchDevice::Cpu),
                n if index < n => Ok(LibTorchDevice::Cuda(index)),
                n => Err(no_such_device("tch", index, n)),
            }
        }

        fn describe(index: usize) -> String {
            if visible() == 0 { cpu_slot(index) } else { format!("CUDA device {index}") }
        }

        fn is_fast_in(precision: Precision) -> bool {
            visible() > 0 || kiln_ops::has_instructions(precision)
        }

        fn libraries() -> Option<String> {
            (visible() > 0).then(|| {
                let [cuda, cudnn] = [::tch::utils::version_cudart(), ::tch::utils::version_cudnn()];
                let [cuda, cudnn] = [(cuda / 1000, cuda % 1000 / 10), (cudnn / 10_000, cudnn % 10_000 / 100)];
                format!("LibTorch for CUDA {}.{}, cuDNN {}.{}", cuda.0, cuda.1, cudnn.0, cudnn.1)
            })
        }

        fn graph(index: usize) -> std::result::Result<Box<dyn Graph>, String> {
            kiln_ops::cuda_graph(index)
        }

        fn choose_kernels(deterministic: bool) {
            if visible() > 0 {
                kiln_ops::choose_kernels(deterministic);
            }
        }

        fn on_threads<R: Send>(threads: usize, replicas: usize, work: impl FnOnce() -> R + Send) -> R {
            use_threads(share(threads, replicas));
            work()
        }

        /// OpenMP gives every computing thread a team of its own. If all teams together exceed the processor, their
        /// members go to sleep after each operation.
        fn stay_on_one_thread() {
            use_threads(1);
        }
    }

    fn use_threads(count: usize) {
        // LibTorch keeps this number per calling thread, and initialises it in a new thread from the last value of any
        // other thread. Reading it first forces the initialisation, which would otherwise overwrite it later.
        let _ = ::tch::get_num_threads();
        ::tch::set_num_threads(count as i32);
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::super::driver::{Toolchain, toolchain};
    use super::{Error, HostBackend, Result, no_such_device, prepare};
    use burn_cuda::Cuda;
    use burn_cuda::CudaDevice;

    impl HostBackend for Cuda<f32, i32> {
        fn open(index: usize) -> Result<CudaDevice> {
            match toolchain() {
                Ok(Toolchain { devices, kernels, .. }) if index < *devices => {
                    prepare(kernels.as_deref()).map(|()| CudaDevice::new(index))
                }
                Ok(Toolchain { devices, .. }) => Err(no_such_device("cuda", index, *devices)),
                Err(why) => Err(Error::usage(format!("the cuda backend cannot run: {why}"))),
            }
        }

        fn describe(index: usize) -> String {
            format!("CUDA device {index}")
        }

        fn libraries() -> Option<String> {
            toolchain().as_ref().ok().map(ToString::to_string)
        }

        fn use_cudnn(index: usize) -> std::result::Result<(), String> {
            kiln_ops::use_cudnn(index)
        }
    }
}

#[cfg(feature = "wgpu")]
mod wgpu {
    use std::panic::{catch_unwind, set_hook, take_hook};
    use std::sync::LazyLock;

    use super::{Error, HostBackend, Result, no_such_device, prepare};
    use burn::tensor::backend::Backend;
    use burn_wgpu::Wgpu;
    use burn_wgpu::WgpuDevice;

    /// CubeCL's number for discrete GPUs.
    const DISCRETE: u16 = 0;

    /// How many there are; `None` without a driver, where CubeCL panics as it opens the device that counts them.
    fn discrete_gpus() -> Option<usize> {
        static FOUND: LazyLock<Option<usize>> = LazyLock::new(|| {
            let report = take_hook();
            set_hook(Box::new(|_| ()));
            let found = catch_unwind(|| <Wgpu<f32, i32>>::device_count(DISCRETE)).ok();
            set_hook(report);
            found
        });
        *FOUND
    }

    impl HostBackend for Wgpu<f32, i32> {
        fn open(index: usize) -> Result<WgpuDevice> {
            prepare(None)?;
            let missing = "the wgpu backend cannot run: there is no driver for Vulkan, Metal or DirectX 12; install the \
                           GPU's, or without a GPU Mesa's, which computes on the processor (Debian, Ubuntu: \
                           mesa-vulkan-drivers), or choose another --backend";
            match discrete_gpus().ok_or_else(|| Error::usage(missing))? {
                // The default of wgpu: an integrated GPU, or a driver that computes on the CPU.
                0 if index == 0 => Ok(WgpuDevice::DefaultDevice),
                n if index < n => Ok(WgpuDevice::DiscreteGpu(index)),
                n => Err(no_such_device("wgpu", index, n.max(1))),
            }
        }

        fn describe(index: usize) -> String {
            format!("GPU {index}")
        }
    }
}
