//! The endings of all replicas, combined for their process: the run is done, the generation is over, or the run fails.

use std::cmp::Reverse;

use super::device::HostBackend;
use super::generation::Held;
use super::plan::Plan;
use super::replica::{Ended, Replica};
use super::task::Task;
use crate::error::{Error, Result};

/// The result for the process.
pub(super) enum Outcome<B: HostBackend, T: Task<B>> {
    Finished(Vec<Replica<B, T>>),
    Over(Box<Held>),
}

/// How the replicas of a process ended.
pub(super) struct Endings<B: HostBackend, T: Task<B>> {
    finished: Vec<Replica<B, T>>,
    parted: Vec<Replica<B, T>>,
    lost: Vec<(usize, String)>,
    discarded: Option<(usize, String)>,
    failure: Option<Error>,
    count: usize,
}

impl<B: HostBackend, T: Task<B>> Default for Endings<B, T> {
    fn default() -> Self {
        let (finished, parted, lost) = Default::default();
        Self { finished, parted, lost, discarded: None, failure: None, count: 0 }
    }
}

impl<B: HostBackend, T: Task<B>> Endings<B, T> {
    pub(super) fn add(&mut self, rank: usize, ended: Ended<B, T>) {
        self.count += 1;
        match ended {
            Ended::Finished(replica) => self.finished.push(*replica),
            Ended::Parted(replica) => self.parted.push(*replica),
            Ended::Lost(how) => self.lost.push((rank, how)),
            Ended::Discarded(step, how) => self.discarded = Some((step, how)),
            Ended::Failed(error) => drop(self.failure.get_or_insert(error)),
        }
    }

    /// The result. If a replica has finished, a loss came too late to matter.
    pub(super) fn sum_up(mut self, plan: &Plan) -> Result<Outcome<B, T>> {
        let hung = plan.world.hosted().len() - self.count;
        match self.failure {
            Some(error) => Err(error),
            None if !self.finished.is_empty() => Ok(Outcome::Finished(self.finished)),
            None if hung > 0 => Err(Error::Training(format!(
                "{hung} of this process's replicas did not end with their generation; if nothing hangs and the step is \
                 only slow, raise --timeout"
            ))),
            None => {
                self.parted.sort_by_key(|replica| Reverse((replica.position.global_step, replica.position.epoch)));
                let device = |(rank, how)| (plan.world.device_of(rank), how);
                let mut failed: Vec<_> = self.lost.into_iter().map(device).collect();
                failed.dedup_by_key(|(device, _)| *device);
                // What differs somewhere is wrong everywhere: all have the sums of wrong gradients.
                let state = self.parted.iter().find_map(Replica::state).filter(|_| self.discarded.is_none());
                Ok(Outcome::Over(Box::new(Held { state, failed, discarded: self.discarded })))
            }
        }
    }
}
