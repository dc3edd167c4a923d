//! Chooses the backend at run time: the only place where the generic program is instantiated.

use kiln_engine::parallel::{BackendKind, HostBackend};
use kiln_system::{Error, Result};

use crate::config::{Request, sketch};

/// A program that is generic over the backend.
pub(super) trait Program {
    type Output;
    fn run<B: HostBackend>(self, backend: BackendKind) -> Result<Self::Output>;
}

/// The backends of this build, best first.
const COMPILED: &[BackendKind] = &[
    #[cfg(feature = "cuda")]
    BackendKind::Cuda,
    #[cfg(feature = "tch")]
    BackendKind::Tch,
    #[cfg(feature = "wgpu")]
    BackendKind::Wgpu,
    #[cfg(feature = "flex")]
    BackendKind::Flex,
];

/// Its name for `--backend`, and its cargo feature.
pub(super) fn name(kind: BackendKind) -> &'static str {
    match kind {
        BackendKind::Auto => "auto",
        BackendKind::Flex => "flex",
        BackendKind::Tch => "tch",
        BackendKind::Cuda => "cuda",
        BackendKind::Wgpu => "wgpu",
    }
}

/// The backend that `auto` chooses.
pub(super) fn default() -> Option<BackendKind> {
    COMPILED.first().copied()
}

pub(super) fn is_compiled(kind: BackendKind) -> bool {
    COMPILED.contains(&kind)
}

/// Prepares this process for the backend that the request chooses. It may restart the process: call it before anything
/// has an effect.
pub fn prepare_process(request: &Request) {
    let asked = sketch(request).map_or(BackendKind::Auto, |config| config.parallel.backend);
    if chosen(asked) == Some(BackendKind::Tch) {
        #[cfg(all(feature = "tch", target_os = "linux"))]
        kiln_ops::bound_spinning();
    }
}

/// The backend that `kind` asks for, if this build has it.
fn chosen(kind: BackendKind) -> Option<BackendKind> {
    if kind == BackendKind::Auto { default() } else { is_compiled(kind).then_some(kind) }
}

/// Runs `program` on the backend that `kind` asks for; `auto` is the best one of this build.
pub(super) fn dispatch<P: Program>(kind: BackendKind, program: P) -> Result<P::Output> {
    match chosen(kind) {
        #[cfg(feature = "flex")]
        Some(BackendKind::Flex) => run_on::<burn_flex::Flex, P>(program, BackendKind::Flex),
        #[cfg(feature = "tch")]
        Some(BackendKind::Tch) => run_on::<burn_tch::LibTorch<f32>, P>(program, BackendKind::Tch),
        #[cfg(feature = "cuda")]
        Some(BackendKind::Cuda) => run_on::<burn_cuda::Cuda<f32, i32>, P>(program, BackendKind::Cuda),
        #[cfg(feature = "wgpu")]
        Some(BackendKind::Wgpu) => run_on::<burn_wgpu::Wgpu<f32, i32>, P>(program, BackendKind::Wgpu),
        _ => Err(not_compiled(kind)),
    }
}

fn run_on<B: HostBackend, P: Program>(program: P, kind: BackendKind) -> Result<P::Output> {
    B::stay_on_one_thread();
    program.run::<B>(kind)
}

fn not_compiled(kind: BackendKind) -> Error {
    let present: Vec<&str> = COMPILED.iter().map(|kind| name(*kind)).collect();
    Error::usage(format!(
        "this build has no '{}' backend, only {}; build it with: cargo build --release --features {}",
        name(kind),
        if present.is_empty() { "none".into() } else { present.join(", ") },
        if kind == BackendKind::Auto { "flex" } else { name(kind) }
    ))
}

pub(super) struct AvailableDevices {
    pub(super) backend: BackendKind,
    pub(super) name: String,
    /// `None` if replicas share the processor.
    pub(super) count: Option<usize>,
}

/// The devices of the backend `kind`.
pub(super) fn devices(kind: BackendKind) -> Result<AvailableDevices> {
    dispatch(kind, ListDevices)
}

struct ListDevices;

impl Program for ListDevices {
    type Output = AvailableDevices;

    fn run<B: HostBackend>(self, backend: BackendKind) -> Result<AvailableDevices> {
        let count = (!B::is_processor()).then(|| (0..).take_while(|index| B::open(*index).is_ok()).count());
        let name = if B::is_processor() { "CPU".into() } else { B::describe(0) };
        Ok(AvailableDevices { backend, name, count })
    }
}
