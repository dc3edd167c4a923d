//! What an elastic run asks of its membership, as a trait: a run in one process loses devices at most, and a build
//! without an engine between processes knows no other.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::parallel::{Generation, ParallelConfig, Processes, Undisturbed, World};

/// What state of the run a process holds; the newer one is the greater one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    /// The generation of its last committed step; 0 if it holds nothing.
    pub generation: u64,
    /// Steps done.
    pub step: usize,
}

/// What a process of an elastic run does next.
#[derive(Debug)]
pub enum Next<M> {
    /// It takes part in a generation.
    Begin(M),
    /// It has left the run, as it wanted.
    Left,
    /// Nothing: the others have completed the run.
    Complete,
}

/// The processes of an elastic run, from one generation to the next.
pub trait Members: Debug + Send + Sync {
    /// Meets for the next generation, with what this process holds and the devices it has; `failure` says why it left
    /// the last one by itself. Calls `keep` if nobody goes on with the run
    /// for now and this process is the one to save what it holds, or if it leaves and cannot know whether anybody goes on.
    fn next(
        &self,
        standing: Standing,
        devices: &[usize],
        failure: Option<String>,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Next<Meeting>>;

    /// Says that the run is complete, or waits until the process that writes it down has said so; false if the
    /// generation is over before.
    fn complete(&self) -> Result<bool>;

    /// Notes the steps done and images per second, for whoever looks.
    fn progress(&self, step: usize, images_per_second: f64);

    /// Asks to leave in good order; false where there is nobody to leave the run to.
    fn drain(&self) -> bool;

    /// Leaves the others: for good, or for this reason, which they all hear.
    fn leave(&self, failure: Option<&str>);
}

/// A generation, and this process's place in it.
#[derive(Debug)]
pub struct Meeting {
    /// Counts generations from 1.
    pub number: u64,
    /// Who hosts which replicas.
    pub world: World,
    /// How many of its processes share this machine.
    pub neighbours: usize,
    /// The others, if there are any.
    pub processes: Option<Processes>,
    /// What replicas ask.
    pub generation: Arc<dyn Generation>,
    /// What changed, for people.
    pub why: String,
}

/// An elastic run in one process.
#[derive(Debug)]
struct Solitary {
    size: usize,
    last: Mutex<u64>,
}

impl Members for Solitary {
    fn next(
        &self,
        _standing: Standing,
        devices: &[usize],
        failure: Option<String>,
        _keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Next<Meeting>> {
        if devices.is_empty() {
            return Err(Error::Training(failure.unwrap_or_else(|| "no device is left".into())));
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        Ok(Next::Begin(Meeting {
            number: *last,
            world: World::new(self.size, devices.to_vec()),
            neighbours: 1,
            processes: None,
            generation: Arc::new(Undisturbed),
            why: failure.unwrap_or_else(|| "the run begins".into()),
        }))
    }

    fn complete(&self) -> Result<bool> {
        Ok(true)
    }

    fn progress(&self, _step: usize, _images_per_second: f64) {}

    fn drain(&self) -> bool {
        false
    }

    fn leave(&self, _failure: Option<&str>) {}
}

/// A process of an elastic run, as a visitor sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Present {
    /// Its rank, if it has a part in the generation.
    pub rank: Option<usize>,
    /// Its machine.
    pub host: String,
    /// Its process id.
    pub process: u32,
    /// Devices it uses, or has.
    pub devices: usize,
    /// Its replicas.
    pub replicas: std::ops::Range<usize>,
    /// Whether it is about to leave.
    pub leaves: bool,
    /// Steps it has done, as of its last heartbeat.
    pub step: u64,
    /// Its throughput, over all replicas of the run.
    pub images_per_second: f64,
}

/// An elastic run, as a visitor sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Attendance {
    /// Counts generations from 1; 0 before the first.
    pub generation: u64,
    /// What goes on, as in `running`.
    pub phase: &'static str,
    /// The latest change.
    pub why: String,
    /// Everybody who is there, by rank and then by arrival.
    pub present: Vec<Present>,
}

/// Asks the rendezvous of an elastic run who is there, after asking the process of rank `drain` to leave, if any.
///
/// # Errors
/// [`Error::PeerLost`] where there is no rendezvous, [`Error::Usage`] where it lets nobody in, or has no such rank.
pub fn attendance(parallel: &ParallelConfig, drain: Option<usize>) -> Result<Attendance> {
    #[cfg(feature = "gloo")]
    return super::holder::attendance(parallel, drain);
    #[cfg(not(feature = "gloo"))]
    {
        let _ = (parallel, drain);
        Err(Error::usage(super::peers::NOT_COMPILED))
    }
}

/// Holds the rendezvous of an elastic run at `bind` until the run is over or `stopped` says so; calls `listening` once
/// processes can come.
///
/// # Errors
/// [`Error::Usage`] where it cannot listen, or everybody could come without a secret; [`Error::PeerLost`] if the run
/// ends before it is complete.
pub fn hold_rendezvous(
    bind: SocketAddr,
    parallel: &ParallelConfig,
    listening: &dyn Fn(),
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    #[cfg(feature = "gloo")]
    return super::holder::hold_alone(bind, parallel, listening, stopped);
    #[cfg(not(feature = "gloo"))]
    {
        let _ = (bind, parallel, listening, stopped);
        Err(Error::usage(super::peers::NOT_COMPILED))
    }
}

/// Comes to an elastic run. `configuration` is what must be the same in all its processes; sums are taken in the order
/// of the tree if `ordered`.
pub fn elastic(
    parallel: &ParallelConfig,
    configuration: BTreeMap<String, String>,
    ordered: bool,
) -> Result<Box<dyn Members>> {
    if parallel.dist_url.is_empty() {
        return Ok(Box::new(Solitary { size: parallel.world_size, last: Mutex::new(0) }));
    }
    #[cfg(feature = "gloo")]
    return super::crew::Crew::join(parallel, configuration, ordered).map(|crew| Box::new(crew) as Box<dyn Members>);
    #[cfg(not(feature = "gloo"))]
    {
        let _ = (configuration, ordered);
        Err(Error::usage(super::peers::NOT_COMPILED))
    }
}
