//! `train doctor`: what this build and this machine have for a training, and how to get what is missing.

use std::thread::available_parallelism;

use kiln_engine::parallel::BackendKind;
use kiln_kernels::{MatrixUnit, Set};
use kiln_system::Result;
use kiln_training::{backend, backend_name, default_backend, is_compiled};

use crate::metrics::Card;
use crate::trainer::resources::{bytes, memory_of_machine};
use crate::trainer::terminal::say;

/// How to build each backend, and what it needs at run time.
const BACKENDS: [(BackendKind, &str); 4] = [
    (BackendKind::Flex, "cargo install --path . --features flex"),
    (BackendKind::Tch, "make setup-tch, then cargo install --path . --features tch"),
    (BackendKind::Cuda, "cargo install --path . --features cuda; it needs NVIDIA's driver and CUDA's NVRTC"),
    (BackendKind::Wgpu, "cargo install --path . --features wgpu; it needs a driver for Vulkan, Metal or DirectX 12"),
];

/// The instructions of Kiln's kernels.
fn instructions() -> &'static str {
    match Set::best() {
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => "AVX-512",
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => "AVX2",
        Set::Portable if cfg!(target_arch = "x86_64") => "neither AVX-512 nor AVX2, so convolutions are slow",
        Set::Portable => "portable kernels",
    }
}

/// Prints a line for everything that a training may use.
pub fn doctor() {
    let line = |name: &str, text: String| say(&format!("{name:<11} {text}"));
    line(
        "kiln",
        format!("{}, {} by default", env!("CARGO_PKG_VERSION"), default_backend().map_or("none", backend_name)),
    );
    let cores = available_parallelism().map_or(1, usize::from);
    let memory = memory_of_machine().map_or(String::new(), |memory| format!(", {} of memory", bytes(memory)));
    let unit = MatrixUnit::of_machine().map_or("", |_| ", a matrix unit for bf16 (AMX)");
    line("processor", format!("{cores} threads, {}{unit}{memory}", instructions()));
    for (kind, build) in BACKENDS {
        let found = if is_compiled(kind) {
            devices(kind).unwrap_or_else(|error| vec![format!("cannot run: {error}")])
        } else {
            vec![format!("not in this build; {build}")]
        };
        found.into_iter().for_each(|text| line(backend_name(kind), text));
    }
    line(
        "processes",
        if cfg!(feature = "gloo") {
            "several processes over Gloo: train launch --nproc 2 -- ARGUMENTS".into()
        } else {
            "one process in this build; for several: make setup-dist, then add --features gloo".into()
        },
    );
    for (name, is_there, what) in [
        ("parquet", cfg!(feature = "parquet"), "images in Parquet files: --data parquet"),
        ("remote", cfg!(feature = "remote"), "shards and checkpoints at https:// and s3://"),
    ] {
        let missing = format!("not in this build; add --features {name} for {what}");
        line(name, if is_there { what.into() } else { missing });
    }
    let terminal =
        if cfg!(feature = "tui") { "dashboard and lines" } else { "lines; add --features tui for a dashboard" };
    line("progress", terminal.into());
}

fn devices(kind: BackendKind) -> Result<Vec<String>> {
    let backend = backend(kind)?;
    let libraries = backend.libraries().map_or(String::new(), |libraries| format!(" ({libraries})"));
    if backend.is_processor() {
        let more = if kind == BackendKind::Tch { "; no CUDA device is visible to LibTorch" } else { "" };
        return Ok(vec![format!("ready on the CPU{libraries}{more}")]);
    }
    backend.open(0)?;
    let card = |index| Card::of(index).filter(|_| kind != BackendKind::Wgpu);
    let described = |index| match card(index) {
        Some(card) => format!("ready: device {index}, {card}{libraries}"),
        None => format!("ready: {}{libraries}", backend.describe(index)),
    };
    Ok((0..backend.count_devices().unwrap_or(0)).map(described).collect())
}
