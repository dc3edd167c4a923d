//! NCCL, by a stand-in that adds up in the host's memory: what travels, what is said if it will not do, and what becomes
//! of a run whose calls hang, fail or break.
//!
//! `KILN_NCCL=/usr/lib/x86_64-linux-gnu/libnccl.so.2 cargo test --features tch,gloo -- nccl::conformance` holds the real
//! library against the same promises, on all CUDA devices of the machine.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use kiln::parallel::nccl::{Library, Nccl};
use kiln::parallel::{Processes, World};
use tempfile::TempDir;

use crate::command::{Workplace, errors, skip, succeeded};
use crate::engines::{Store, connected};
use crate::files::file;

mod conformance;
mod refusals;
mod runs;
mod sums;

const LIMIT: Duration = Duration::from_secs(20);

/// The stand-in, compiled once; `None` without a compiler.
fn stand_in() -> Option<PathBuf> {
    static MADE: LazyLock<Option<(TempDir, PathBuf)>> = LazyLock::new(|| {
        let place = tempfile::tempdir().unwrap();
        let library = place.path().join("libnccl.so.2");
        let mut compiler = Command::new("c++");
        compiler.args(["-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", "-o"]).arg(&library);
        match compiler.arg(file("tests/fixtures/nccl.cc")).status() {
            Ok(status) => assert!(status.success(), "nccl.cc does not compile"),
            Err(_) => return None,
        }
        Some((place, library))
    });
    let found = MADE.as_ref().map(|(_, library)| library.clone());
    if found.is_none() {
        skip("there is no C++ compiler 'c++'");
    }
    found
}

/// One engine for each of `size` processes, which are threads here; `device` is that of a process.
fn joined(library: &Arc<Library>, size: usize, device: fn(usize) -> Option<usize>) -> Vec<Nccl> {
    let store = Store::default();
    let join = |rank| Nccl::connect(library.clone(), [rank, size], device(rank), &store.clone(), Arc::default(), LIMIT);
    std::thread::scope(|scope| {
        let join = &join;
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || join(rank).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The processes of a world, connected over Gloo, and over the stand-in for gradients.
fn connected_over_nccl(world: &World, ordered: bool) -> Option<Vec<Processes>> {
    let library = Library::load(&stand_in()?.into()).unwrap();
    let engines = joined(&library, world.processes(), |_| None);
    let both = connected(world, ordered).into_iter().zip(engines);
    Some(both.map(|(processes, nccl)| processes.with_devices(Some(Arc::new(nccl)))).collect())
}

/// The command, with the stand-in for NCCL and a fault of it.
pub fn over(mut command: Command, fault: &str) -> Option<Command> {
    command.env("KILN_NCCL", stand_in()?).env("KILN_STAND_IN", fault).env("TRAIN__PARALLEL__DIST_BACKEND", "nccl");
    Some(command)
}
