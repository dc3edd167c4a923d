//! The backends of this build, chosen at run time: the only place where the engine is instantiated for each of them.

use std::marker::PhantomData;

use kiln_engine::nn::{freeze, initialize};
use kiln_engine::parallel::nccl::Transport;
use kiln_engine::parallel::{
    BackendKind, DistBackend, HostBackend, World, check_devices, check_graph, check_precision, time_copy,
};
use kiln_ops::Precision;
use kiln_system::{Error, Result};

use super::model::{Loss, ModelConfig, ResNet};
use super::network::{Network, On};

/// A backend, and its devices by their indices for `--gpu-ids`.
pub trait Backend: Send + Sync {
    fn kind(&self) -> BackendKind;

    /// Whether its devices share the processor.
    fn is_processor(&self) -> bool;

    /// # Errors
    /// If there is no such device, or if it cannot be used.
    fn open(&self, device: usize) -> Result<()>;

    /// The name of a device, for people.
    fn describe(&self, device: usize) -> String;

    /// The name of its first device, or of the processor.
    fn name_of_devices(&self) -> String {
        if self.is_processor() { "CPU".into() } else { self.describe(0) }
    }

    /// How many devices there are; `None` if replicas share the processor.
    fn count_devices(&self) -> Option<usize> {
        (!self.is_processor()).then(|| (0..).take_while(|device| self.open(*device).is_ok()).count())
    }

    /// Keeps the operations of the calling thread on it, where a team of its own would slow the replicas down.
    fn stay_on_one_thread(&self);

    /// The libraries of its devices, if they are not part of the program.
    fn libraries(&self) -> Option<String>;

    /// Whether its devices have instructions for `precision`.
    fn is_fast_in(&self, precision: Precision) -> bool;

    /// Checks that every device of `world` is there and computes in `precision`.
    fn check(&self, world: &World, precision: Precision) -> Result<()>;

    /// Checks that every device of `world` can record steps.
    fn check_graph(&self, world: &World) -> Result<()>;

    /// Chooses between the fastest kernels and those that compute the same bits in every run.
    fn choose_kernels(&self, deterministic: bool);

    /// Lets cuDNN compute the convolutions, if `world` has one device.
    fn use_cudnn(&self, world: &World) -> Result<()>;

    /// By which engine tensors travel between `devices` of this process and those of others, unless it `is_alone`.
    fn transport(&self, devices: &[usize], asked: DistBackend, is_alone: bool) -> Result<Transport>;

    /// Bytes per second that go to the host and back to a device.
    fn time_copy(&self, device: usize) -> Result<f64>;

    /// Does `work`, whose operations use `threads` threads.
    fn on_threads(&self, threads: usize, work: &mut (dyn FnMut() + Send));

    /// A network with `outputs` classes on a device, its weights drawn from `seed`.
    ///
    /// # Errors
    /// If the device cannot be used, or nothing has the name of the part to freeze.
    fn network(
        &self,
        device: usize,
        model: &ModelConfig,
        outputs: usize,
        loss: Loss,
        seed: u64,
    ) -> Result<Box<dyn Network>>;
}

struct Compiled<B>(BackendKind, PhantomData<fn() -> B>);

impl<B: HostBackend> Backend for Compiled<B> {
    fn kind(&self) -> BackendKind {
        self.0
    }

    fn is_processor(&self) -> bool {
        B::is_processor()
    }

    fn open(&self, device: usize) -> Result<()> {
        B::open(device).map(drop)
    }

    fn describe(&self, device: usize) -> String {
        B::describe(device)
    }

    fn stay_on_one_thread(&self) {
        B::stay_on_one_thread();
    }

    fn libraries(&self) -> Option<String> {
        B::libraries()
    }

    fn is_fast_in(&self, precision: Precision) -> bool {
        B::is_fast_in(precision)
    }

    fn check(&self, world: &World, precision: Precision) -> Result<()> {
        check_devices::<B>(world)?;
        check_precision::<B>(world, precision)
    }

    fn check_graph(&self, world: &World) -> Result<()> {
        check_graph::<B>(world)
    }

    fn choose_kernels(&self, deterministic: bool) {
        B::choose_kernels(deterministic);
    }

    fn use_cudnn(&self, world: &World) -> Result<()> {
        let used = match world.devices[..] {
            [device] if world.processes() == 1 => B::use_cudnn(device),
            _ => Err("it takes one device, since it would wait for collectives between several".into()),
        };
        used.map_err(|why| Error::usage(format!("cuDNN cannot compute: {why}; or leave out --cudnn")))
    }

    fn transport(&self, devices: &[usize], asked: DistBackend, is_alone: bool) -> Result<Transport> {
        Transport::choose::<B>(devices, asked, is_alone)
    }

    fn time_copy(&self, device: usize) -> Result<f64> {
        time_copy::<B>(device)
    }

    fn on_threads(&self, threads: usize, work: &mut (dyn FnMut() + Send)) {
        B::on_threads(threads, 1, work);
    }

    fn network(
        &self,
        device: usize,
        model: &ModelConfig,
        outputs: usize,
        loss: Loss,
        seed: u64,
    ) -> Result<Box<dyn Network>> {
        let network = initialize(ResNet::new(model, outputs, loss, &B::open(device)?), seed)?;
        Ok(Box::new(On::<B>(freeze(network, &model.freeze)?)))
    }
}

/// The backends of this build, best first.
const COMPILED: &[&dyn Backend] = &[
    #[cfg(feature = "cuda")]
    &Compiled::<burn_cuda::Cuda<f32, i32>>(BackendKind::Cuda, PhantomData),
    #[cfg(feature = "tch")]
    &Compiled::<burn_tch::LibTorch<f32>>(BackendKind::Tch, PhantomData),
    #[cfg(feature = "wgpu")]
    &Compiled::<burn_wgpu::Wgpu<f32, i32>>(BackendKind::Wgpu, PhantomData),
    #[cfg(feature = "flex")]
    &Compiled::<burn_flex::Flex>(BackendKind::Flex, PhantomData),
];

/// Its name for `--backend`, and its cargo feature.
pub fn backend_name(kind: BackendKind) -> &'static str {
    match kind {
        BackendKind::Auto => "auto",
        BackendKind::Flex => "flex",
        BackendKind::Tch => "tch",
        BackendKind::Cuda => "cuda",
        BackendKind::Wgpu => "wgpu",
    }
}

/// The backend that `auto` chooses.
pub fn default_backend() -> Option<BackendKind> {
    COMPILED.first().map(|best| best.kind())
}

pub fn is_compiled(kind: BackendKind) -> bool {
    COMPILED.iter().any(|backend| backend.kind() == kind)
}

/// Prepares this process for the backend that `kind` asks for. It may restart the process: call it before anything has
/// an effect.
pub fn prepare_process(kind: BackendKind) {
    if chosen(kind).is_some_and(|backend| backend.kind() == BackendKind::Tch) {
        #[cfg(all(feature = "tch", target_os = "linux"))]
        kiln_ops::bound_spinning();
    }
}

/// The backend that `kind` asks for, if this build has it.
fn chosen(kind: BackendKind) -> Option<&'static dyn Backend> {
    COMPILED.iter().copied().find(|backend| kind == BackendKind::Auto || backend.kind() == kind)
}

/// The backend that `kind` asks for; `auto` is the best one of this build.
///
/// # Errors
/// [`Error::Usage`] if this build does not have it.
pub fn backend(kind: BackendKind) -> Result<&'static dyn Backend> {
    let backend = chosen(kind).ok_or_else(|| not_compiled(kind))?;
    backend.stay_on_one_thread();
    Ok(backend)
}

fn not_compiled(kind: BackendKind) -> Error {
    let present: Vec<&str> = COMPILED.iter().map(|backend| backend_name(backend.kind())).collect();
    Error::usage(format!(
        "this build has no '{}' backend, only {}; build it with: cargo build --release --features {}",
        backend_name(kind),
        if present.is_empty() { "none".into() } else { present.join(", ") },
        if kind == BackendKind::Auto { "flex" } else { backend_name(kind) }
    ))
}
