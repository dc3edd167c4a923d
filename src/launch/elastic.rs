//! What an elastic run needs from its membership, as a trait. A run in one process can only lose devices; a build
//! without an engine between processes supports no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kiln_engine::parallel::{Generation, Processes, Undisturbed, World};
use kiln_membership::{MemberStatus, Next, StateVersion};
use kiln_system::{Error, Result};

/// The membership of this process in an elastic run, from one generation to the next.
pub trait ElasticMembership: Send + Sync {
    /// Waits for the next generation with a part for this process. `holds` is the version of its state, `devices` are
    /// the devices that it can still use, `failure` says why it left the last generation on its own.
    ///
    /// Calls `keep` to save the state if too few members are left and this process comes first among them, or if it
    /// leaves and cannot know whether others continue.
    fn next(
        &self,
        holds: StateVersion,
        devices: &[usize],
        failure: Option<String>,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Next<ActiveGeneration>>;

    /// On rank 0, announces that the run is complete; on other ranks, waits for that. False if the generation ends
    /// before.
    fn complete(&self) -> Result<bool>;

    /// Waits until it is known whether this process still belongs to its generation.
    ///
    /// # Errors
    /// [`Error::PeerLost`] with the reason if it does not.
    fn confirm(&self) -> Result<()>;

    /// The processes, those with replicas first, in rank order; empty if there is one.
    fn members(&self) -> Vec<MemberStatus>;

    /// Sets the steps done, the images per second, and for how many seconds others waited for this process, in the last
    /// minute and in all, that heartbeats report.
    fn progress(&self, step: usize, images_per_second: f64, waited: [f64; 2]);

    /// Asks to leave in good order; false if there is no other process that could continue the run.
    fn drain(&self) -> bool;

    /// Leaves the others: in good order, or because of `failure`, which they are told.
    fn leave(&self, failure: Option<&str>);
}

/// A generation that this process takes part in.
pub struct ActiveGeneration {
    /// Counts generations from 1.
    pub number: u64,
    /// Which process hosts which replicas.
    pub world: World,
    pub local_processes: usize,
    pub processes: Option<Processes>,
    pub generation: Arc<dyn Generation>,
    /// The causes of the change, for people.
    pub why: String,
}

pub(super) struct SingleProcess {
    /// The number of replicas, and the stages of each.
    pub workers: [usize; 2],
    /// The number of the last generation; 0 before the first.
    pub last: AtomicU64,
}

impl ElasticMembership for SingleProcess {
    fn next(
        &self,
        _holds: StateVersion,
        devices: &[usize],
        failure: Option<String>,
        _keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Next<ActiveGeneration>> {
        if devices.is_empty() {
            return Err(Error::Training(failure.unwrap_or_else(|| "no device is left".into())));
        }
        Ok(Next::Begin(ActiveGeneration {
            number: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            world: World::staged(self.workers, 0, vec![devices.len()], devices.to_vec()),
            local_processes: 1,
            processes: None,
            generation: Arc::new(Undisturbed),
            why: failure.unwrap_or_else(|| "the run begins".into()),
        }))
    }

    fn complete(&self) -> Result<bool> {
        Ok(true)
    }

    fn confirm(&self) -> Result<()> {
        Ok(())
    }

    fn members(&self) -> Vec<MemberStatus> {
        Vec::new()
    }

    fn progress(&self, _step: usize, _images_per_second: f64, _waited: [f64; 2]) {}

    fn drain(&self) -> bool {
        false
    }

    fn leave(&self, _failure: Option<&str>) {}
}
