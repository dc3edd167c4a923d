//! What a run asks of the other processes, as a trait: a run in one process has nobody to ask, and a build without an
//! engine between processes knows that it never will.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Debug;
use std::path::Path;

use crate::error::Result;
use crate::parallel::{ParallelConfig, Processes, World};

/// The processes of a run, from their meeting to their end.
pub trait Peers: Debug + Send + Sync {
    /// The experiment's replicas over all processes.
    fn world(&self) -> &World;

    /// How many of the processes share this machine.
    fn neighbours(&self) -> usize;

    /// Fails unless all processes say the same about `what`, such as the fingerprint of their images. Nobody computes it
    /// who has nobody to compare it with.
    fn agree(&self, what: &str, value: &dyn Fn() -> String) -> Result<()>;

    /// Connects the processes, if there are several, until one is lost; sums are taken in the order of the tree if
    /// `ordered`.
    fn connect(&self, ordered: bool) -> Result<Option<Processes>>;

    /// The first process says that what it writes is complete, the others wait for that.
    fn complete(&self) -> Result<()>;

    /// Leaves the others: for good, or for this reason, which they all hear.
    fn leave(&self, failure: Option<&str>);
}

/// The only process of a run.
#[derive(Debug)]
struct Alone(World);

impl Peers for Alone {
    fn world(&self) -> &World {
        &self.0
    }

    fn neighbours(&self) -> usize {
        1
    }

    fn agree(&self, _what: &str, _value: &dyn Fn() -> String) -> Result<()> {
        Ok(())
    }

    fn connect(&self, _ordered: bool) -> Result<Option<Processes>> {
        Ok(None)
    }

    fn complete(&self) -> Result<()> {
        Ok(())
    }

    fn leave(&self, _failure: Option<&str>) {}
}

/// The process of a command that is not about a run of several.
pub fn alone(parallel: &ParallelConfig) -> Box<dyn Peers> {
    Box::new(Alone(World::new(parallel.world_size, parallel.gpu_ids.clone())))
}

/// Meets the other processes of a run. `configuration` is what must be the same on all of them.
pub fn join(parallel: &ParallelConfig, configuration: BTreeMap<String, String>) -> Result<Box<dyn Peers>> {
    if parallel.processes() == 1 {
        return Ok(alone(parallel));
    }
    #[cfg(feature = "gloo")]
    return super::job::Job::join(parallel, configuration).map(|job| Box::new(job) as Box<dyn Peers>);
    #[cfg(not(feature = "gloo"))]
    {
        let _ = configuration;
        Err(crate::error::Error::usage(NOT_COMPILED))
    }
}

/// `train launch`: starts `processes` of this program with `arguments`, which come to `parallel`, and watches over them.
/// Returns the exit code.
pub fn launch(processes: usize, arguments: &[OsString], parallel: &ParallelConfig) -> Result<u8> {
    #[cfg(feature = "gloo")]
    return super::job::launch(processes, arguments, parallel);
    #[cfg(not(feature = "gloo"))]
    {
        let _ = (processes, arguments, parallel);
        Err(crate::error::Error::usage(NOT_COMPILED))
    }
}

/// `train secret`: writes a new secret for the processes of a run to `path`.
///
/// # Errors
/// [`Error::Usage`](crate::error::Error::Usage) if there is something already.
pub fn create_secret(path: &Path) -> Result<()> {
    #[cfg(feature = "gloo")]
    return super::rendezvous::create_secret(path);
    #[cfg(not(feature = "gloo"))]
    {
        let _ = path;
        Err(crate::error::Error::usage(NOT_COMPILED))
    }
}

#[cfg(not(feature = "gloo"))]
pub(super) const NOT_COMPILED: &str = "this build trains in one process; for several build it with: cargo build --release \
                            --features gloo (after make setup-dist)";
