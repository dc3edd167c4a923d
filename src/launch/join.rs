//! The ways into a run: its membership in one process or, over Gloo, in several; and the commands that hold a
//! rendezvous or ask it. A build without Gloo refuses what needs other processes.
#![cfg_attr(not(feature = "gloo"), allow(unused_variables, reason = "only used by the engine between processes"))]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use kiln_engine::parallel::nccl::Transport;
use kiln_membership::Machines;
use kiln_membership::RunStatus;
use kiln_membership::environment::identify;
#[cfg(not(feature = "gloo"))]
use kiln_system::Error;
use kiln_system::Result;

use super::elastic::{ElasticMembership, SingleProcess};
use super::fixed::{FixedMembership, alone};
use crate::config::ParallelConfig;

#[cfg(not(feature = "gloo"))]
const NOT_COMPILED: &str = "this build trains in one process; for several build it with: cargo build --release \
                            --features gloo (after make setup-dist)";

/// The service and the engine take equally long for what may take long.
const _: () = assert!(kiln_membership::PATIENCE == kiln_engine::parallel::PATIENCE);

/// The result of a call that needs the engine between processes.
macro_rules! over_gloo {
    ($call:expr) => {{
        #[cfg(feature = "gloo")]
        return $call;
        #[cfg(not(feature = "gloo"))]
        Err(Error::usage(NOT_COMPILED))
    }};
}

/// Joins a run and waits for all of its processes; `configuration` must be the same on all of them.
pub fn join(parallel: &ParallelConfig, configuration: BTreeMap<String, String>) -> Result<Box<dyn FixedMembership>> {
    if parallel.processes() == 1 {
        return alone(parallel);
    }
    over_gloo!(Ok(Box::new(super::fixed_member::FixedMember::join(parallel, configuration)?)))
}

/// Joins an elastic run. `configuration` must be the same in all its processes; `nanoseconds` is what a replica takes on
/// a device of this one, if that was timed; `ordered` asks for sums in the order of the tree, `transport` says by which
/// engine tensors travel.
pub fn join_elastic(
    parallel: &ParallelConfig,
    configuration: BTreeMap<String, String>,
    nanoseconds: Option<u64>,
    ordered: bool,
    transport: Transport,
) -> Result<Box<dyn ElasticMembership>> {
    if parallel.dist_url.is_empty() {
        let workers = [parallel.world_size, parallel.stages];
        return Ok(Box::new(SingleProcess { workers, last: AtomicU64::new(0) }));
    }
    over_gloo!(Ok(Box::new(super::elastic_member::ElasticMember::join(
        parallel,
        configuration,
        nanoseconds.unwrap_or(0),
        ordered,
        transport
    )?)))
}

/// `train launch`: starts `processes` of this program with `arguments`, which resolve to `parallel`, on this one of the
/// `machines`, and supervises them; calls `listening` with the address of an elastic run's rendezvous, if this process
/// holds it. Returns the exit code.
pub fn launch(
    processes: usize,
    machines: &Machines,
    arguments: &[OsString],
    parallel: &ParallelConfig,
    listening: &dyn Fn(&str),
) -> Result<u8> {
    over_gloo!(super::fixed_member::launch(processes, machines, arguments, parallel, listening))
}

/// `train secret`: writes a new secret for the processes of a run to `path`.
///
/// # Errors
/// [`kiln_system::Error::Usage`] if `path` exists.
pub fn create_secret(path: &Path) -> Result<()> {
    over_gloo!(kiln_membership::rendezvous::create_secret(path))
}

/// The status of an elastic run, after asking the process of rank `drain`, if given, to leave.
///
/// # Errors
/// [`kiln_system::Error::PeerLost`] if there is no rendezvous, [`kiln_system::Error::Usage`] if it refuses this
/// process or has no such rank.
pub fn run_status(parallel: &ParallelConfig, drain: Option<usize>) -> Result<RunStatus> {
    over_gloo!(super::holder::run_status(parallel, drain))
}

/// Holds the rendezvous of an elastic run at `bind` until the run is over or `stopped` returns true; calls `listening`
/// once processes can connect.
///
/// # Errors
/// [`kiln_system::Error::Usage`] if it cannot listen, or has no secret on a network; [`kiln_system::Error::PeerLost`]
/// if the run fails.
pub fn hold_rendezvous(
    bind: SocketAddr,
    parallel: &ParallelConfig,
    listening: &dyn Fn(),
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    over_gloo!(super::holder::hold_alone(bind, parallel, listening, stopped))
}

/// The name of a process that is the first one on its machine, but not rank 0, which shows the progress.
pub fn quiet_name(parallel: &ParallelConfig) -> Option<String> {
    let (rank, processes) = (parallel.rank, parallel.processes());
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let environment: Vec<_> = std::env::vars_os().filter_map(text).collect();
    let local = identify(&environment).ok().flatten().and_then(|identity| Some(identity.local_rank?.value));
    (rank > 0 && processes > 1 && local.is_none_or(|local| local == 0)).then(|| format!("rank {rank} of {processes}"))
}
