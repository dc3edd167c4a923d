//! The endings of all replicas, combined for their process: the run is done, the generation is over, or the run fails.

use std::cmp::Reverse;
use std::ops::Range;

use kiln_system::{Error, Result};

use super::generation::GenerationResult;
use super::{Ended, HostBackend, Plan, Replica, Task, TrainingState, World};

/// The newest state of `replicas` of an elastic run in which no replica shares its update with others, for one or more
/// neighbouring stages.
pub(super) fn kept<B: HostBackend, T: Task<B>>(
    replicas: &mut [Replica<B, T>],
    world: &World,
) -> Option<(Range<usize>, TrainingState)> {
    let version = |replica: &Replica<B, T>| (replica.position.global_step, replica.position.epoch);
    replicas.sort_by_key(|replica| Reverse(version(replica)));
    let newest = version(replicas.iter().find(|replica| replica.keeps_state())?);
    let mut kept: Option<(Range<usize>, TrainingState)> = None;
    for number in world.stages_here() {
        let is_of = |replica: &&Replica<B, T>| replica.stage.number == number && version(replica) == newest;
        match (&mut kept, replicas.iter().filter(is_of).find_map(Replica::state)) {
            (Some((stages, state)), Some(part)) => {
                stages.end = number + 1;
                state.join(part);
            }
            (Some(_), None) => break,
            (none, part) => *none = part.map(|part| (number..number + 1, part)),
        }
    }
    kept
}

pub(super) enum GenerationEnd<B: HostBackend, T: Task<B>> {
    Finished(Vec<Replica<B, T>>),
    Over(Box<GenerationResult>),
}

pub(super) struct Endings<B: HostBackend, T: Task<B>> {
    finished: Vec<Replica<B, T>>,
    parted: Vec<Replica<B, T>>,
    whole: Option<TrainingState>,
    lost: Vec<(usize, String)>,
    discarded: Option<(usize, String)>,
    failure: Option<Error>,
    count: usize,
}

impl<B: HostBackend, T: Task<B>> Default for Endings<B, T> {
    fn default() -> Self {
        let (finished, parted, lost) = Default::default();
        Self { finished, parted, whole: None, lost, discarded: None, failure: None, count: 0 }
    }
}

impl<B: HostBackend, T: Task<B>> Endings<B, T> {
    pub(super) fn add(&mut self, rank: usize, ended: Ended<B, T>) {
        self.count += 1;
        match ended {
            Ended::Finished(replica) => self.finished.push(*replica),
            Ended::Parted(replica, whole) => {
                self.parted.push(*replica);
                self.whole = self.whole.take().or(whole.map(|whole| *whole));
            }
            Ended::Lost(how) => self.lost.push((rank, how)),
            Ended::Discarded(step, how) => self.discarded = Some((step, how)),
            Ended::Failed(error) => drop(self.failure.get_or_insert(error)),
        }
    }

    pub(super) fn are_all(&self, plan: &Plan) -> bool {
        self.count == plan.world.hosted().len()
    }

    /// The result. If a replica has finished, a loss came too late to matter.
    pub(super) fn sum_up(mut self, plan: &Plan) -> Result<GenerationEnd<B, T>> {
        let hung = plan.world.hosted().len() - self.count;
        match self.failure {
            Some(error) => Err(error),
            None if !self.finished.is_empty() => Ok(GenerationEnd::Finished(self.finished)),
            None if hung > 0 => Err(Error::Training(format!(
                "{hung} of this process's replicas did not end with their generation; if nothing hangs and the step is \
                 only slow, raise --timeout"
            ))),
            None => {
                let device = |(rank, how)| (plan.world.device_of(rank), how);
                let mut failed: Vec<_> = self.lost.into_iter().map(device).collect();
                failed.dedup_by_key(|(device, _)| *device);
                // What differs somewhere is wrong everywhere: all have the sums of wrong gradients.
                let kept = match self.whole {
                    _ if self.discarded.is_some() => None,
                    Some(whole) => Some((0..plan.world.stages, whole)),
                    None => kept(&mut self.parted, &plan.world),
                };
                Ok(GenerationEnd::Over(Box::new(GenerationResult {
                    failed,
                    discarded: self.discarded,
                    ..GenerationResult::of(kept)
                })))
            }
        }
    }
}
