//! Stand-ins for libraries: NCCL's adds up in the host's memory. Which of its tests a test runs over it, and how
//! programs are told.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use kiln_engine::parallel::engine::DeviceEngine;
use kiln_engine::parallel::nccl::{Library, Nccl};
use kiln_engine::parallel::{Devices, HostBackend, Links, Processes, World};
use tempfile::TempDir;

use crate::compiled::compiled;
use crate::engines::{EXTENDED, Extend, Store};
use crate::skipped::skip;

pub const LIMIT: Duration = Duration::from_secs(20);

/// The stand-in, compiled once; `None` without a compiler.
pub fn stand_in() -> Option<PathBuf> {
    static MADE: LazyLock<Option<(TempDir, PathBuf)>> = LazyLock::new(|| {
        let place = tempfile::tempdir().unwrap();
        let library = place.path().join("libnccl.so.2");
        compiled("nccl.cc", &library).then_some((place, library))
    });
    let found = MADE.as_ref().map(|(_, library)| library.clone());
    if found.is_none() {
        skip("the stand-in for NCCL is not compiled");
    }
    found
}

/// One engine for each of `size` processes, which are threads here; `device` is that of a process.
pub fn joined(library: &Arc<Library>, size: usize, device: fn(usize) -> Option<usize>) -> Vec<Nccl> {
    let devices: Vec<_> = (0..size).map(|rank| vec![device(rank)]).collect();
    joined_by(library, &devices).into_iter().flatten().collect()
}

/// The engines of processes with these devices.
pub fn joined_by(library: &Arc<Library>, devices: &[Vec<Option<usize>>]) -> Vec<Vec<Nccl>> {
    let (store, size) = (Store::default(), devices.iter().map(Vec::len).sum());
    let join = |process: usize| {
        let first = devices[..process].iter().map(Vec::len).sum();
        Nccl::connect(library, [first, size], &devices[process], (&store.clone(), "test"), &Arc::default(), LIMIT)
            .unwrap()
    };
    std::thread::scope(|scope| {
        let join = &join;
        let threads: Vec<_> = (0..devices.len()).map(|process| scope.spawn(move || join(process))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Processes that are connected over Gloo, with the stand-in for tensors; each has so many devices.
pub fn with_nccl(processes: Vec<Processes>, world: &World, devices: usize) -> Vec<Processes> {
    let library = Library::load(&stand_in().unwrap().into()).unwrap();
    let shares = |rank| World::placed(1, rank, world.blocks.clone(), (0..devices).collect()).shares;
    let blocks: Vec<_> = (0..processes.len()).flat_map(shares).collect();
    let engines = joined_by(&library, &vec![vec![None; devices]; processes.len()]);
    let both = processes.into_iter().zip(engines).enumerate().map(|(rank, (processes, engines))| {
        let engines = engines.into_iter().map(|engine| Arc::new(engine) as Arc<dyn DeviceEngine>).collect();
        let devices = Devices { engines, first: rank * devices, blocks: blocks.clone() };
        processes.with_links(Some(Links { stages: vec![Some(devices)], wires: Vec::new() }))
    });
    both.collect()
}

/// Whether the stand-in reaches this backend's tensors.
pub fn shows_memory<B: HostBackend>() -> bool {
    let mut probe = B::share(B::from_host(&[0.0], &B::open(0).unwrap()));
    let shows = B::is_processor() && B::memory(&mut probe).is_some();
    if !shows {
        skip("the stand-in adds up in the host's memory only");
    }
    shows
}

/// Sends the tensors of a test's processes over the stand-in: of its threads as of the programs that it starts.
const EXTEND: Extend = |processes, world| with_nccl(processes, world, 1);

/// What all tests use: Gloo alone, unless `KILN_TEST_ENGINE` says `nccl`.
pub fn asked_for() -> Option<Extend> {
    let asked = std::env::var("KILN_TEST_ENGINE").is_ok_and(|engine| engine == "nccl");
    asked.then(|| stand_in().expect("the stand-in needs a compiler")).map(|_| EXTEND)
}

/// Runs a test whose processes, from now on, send tensors over the stand-in.
pub fn over_nccl(test: fn()) {
    if stand_in().is_some() {
        EXTENDED.set(Some(EXTEND));
        test();
    }
}

/// What `KILN_TEST_ENGINE` says does not hold for this test: it looks at Gloo's calls, or starts one process without a
/// `--dist-url`, which has nobody to meet.
pub fn over_gloo_only() {
    EXTENDED.set(None);
}

/// As [`over_nccl`], for a test of a backend, whose tensors must be in the host's memory.
pub fn over_nccl_on<B: HostBackend>(test: fn()) {
    if shows_memory::<B>() {
        over_nccl(test);
    }
}

/// Tells a program that such a test starts where tensors go.
pub fn tell(command: &mut Command) {
    if let Some(library) = EXTENDED.get().and_then(|_| stand_in()) {
        command.env("KILN_NCCL", library).env("TRAIN__PARALLEL__DIST_BACKEND", "nccl");
    }
}

/// The command, with the stand-in for NCCL and a fault of it.
pub fn over(mut command: Command, fault: &str) -> Option<Command> {
    command.env("KILN_NCCL", stand_in()?).env("KILN_STAND_IN", fault).env("TRAIN__PARALLEL__DIST_BACKEND", "nccl");
    Some(command)
}

/// `over_nccl!(sentence sentence)` makes of tests of several processes, which go over Gloo, tests `over_nccl::sentence`
/// whose tensors go over the stand-in for NCCL.
#[cfg(feature = "gloo")]
#[allow(unused_macros, reason = "one program starts no processes")]
macro_rules! over_nccl {
    ($($name:ident)+) => {
        mod over_nccl { $(#[test] fn $name() { crate::stand_in::over_nccl(super::$name); })+ }
    };
}
