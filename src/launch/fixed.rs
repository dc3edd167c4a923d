//! What a run of fixed membership needs from its other processes, as a trait that a single process implements too.
#![cfg_attr(not(feature = "gloo"), allow(unused_variables, reason = "only used by the engine between processes"))]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use super::machines::Machines;
use crate::error::Result;
use crate::parallel::nccl::Transport;
use crate::parallel::{ParallelConfig, Processes, World};

/// The membership of this process in a run of fixed size.
pub trait FixedMembership: Send + Sync {
    /// Which process hosts which replicas.
    fn world(&self) -> &World;

    /// How many of the processes run on this machine.
    fn local_processes(&self) -> usize;

    /// Fails unless `value` is the same on all processes; `what` names it, as in `fingerprint of the images`. A single
    /// process does not compute it.
    fn agree(&self, what: &str, value: &dyn Fn() -> String) -> Result<()>;

    /// The `value` of every process, in the order of their ranks; `what` names it.
    fn gather(&self, what: &str, value: String) -> Result<Vec<String>>;

    /// Connects the processes, if there are several; `ordered` asks for sums in the order of the tree, `transport` says
    /// by which engine gradients are summed.
    fn connect(&self, ordered: bool, transport: &Transport) -> Result<Option<Processes>>;

    /// On rank 0, announces that the run's files are complete; on other ranks, waits for that.
    fn complete(&self) -> Result<()>;

    /// Leaves the others: in good order, or because of `failure`, which they are told.
    fn leave(&self, failure: Option<&str>);
}

/// The only process of a run.
struct SingleProcess(World);

impl FixedMembership for SingleProcess {
    fn world(&self) -> &World {
        &self.0
    }

    fn local_processes(&self) -> usize {
        1
    }

    fn agree(&self, _what: &str, _value: &dyn Fn() -> String) -> Result<()> {
        Ok(())
    }

    fn gather(&self, _what: &str, value: String) -> Result<Vec<String>> {
        Ok(vec![value])
    }

    fn connect(&self, _ordered: bool, _transport: &Transport) -> Result<Option<Processes>> {
        Ok(None)
    }

    fn complete(&self) -> Result<()> {
        Ok(())
    }

    fn leave(&self, _failure: Option<&str>) {}
}

/// The membership of a command that runs in one process.
pub fn alone(parallel: &ParallelConfig) -> Box<dyn FixedMembership> {
    let devices = parallel.gpu_ids.clone();
    let replicas = [parallel.world_size, parallel.stages_on(devices.len())];
    Box::new(SingleProcess(World::staged(replicas, 0, vec![devices.len()], devices)))
}

/// Joins a run and waits for all of its processes; `configuration` must be the same on all of them.
pub fn join(parallel: &ParallelConfig, configuration: BTreeMap<String, String>) -> Result<Box<dyn FixedMembership>> {
    if parallel.processes() == 1 {
        return Ok(alone(parallel));
    }
    #[cfg(feature = "gloo")]
    return Ok(Box::new(super::fixed_member::FixedMember::join(parallel, configuration)?));
    #[cfg(not(feature = "gloo"))]
    Err(crate::error::Error::usage(NOT_COMPILED))
}

/// `train launch`: starts `processes` of this program with `arguments`, which resolve to `parallel`, on this one of the
/// `machines`, and supervises them. Returns the exit code.
pub fn launch(processes: usize, machines: &Machines, arguments: &[OsString], parallel: &ParallelConfig) -> Result<u8> {
    #[cfg(feature = "gloo")]
    return super::fixed_member::launch(processes, machines, arguments, parallel);
    #[cfg(not(feature = "gloo"))]
    Err(crate::error::Error::usage(NOT_COMPILED))
}

/// `train secret`: writes a new secret for the processes of a run to `path`.
///
/// # Errors
/// [`Error::Usage`](crate::error::Error::Usage) if `path` exists.
pub fn create_secret(path: &Path) -> Result<()> {
    #[cfg(feature = "gloo")]
    return super::rendezvous::create_secret(path);
    #[cfg(not(feature = "gloo"))]
    Err(crate::error::Error::usage(NOT_COMPILED))
}

#[cfg(not(feature = "gloo"))]
pub(super) const NOT_COMPILED: &str = "this build trains in one process; for several build it with: cargo build --release \
                            --features gloo (after make setup-dist)";
