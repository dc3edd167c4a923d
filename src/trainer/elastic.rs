//! An elastic run: gives the strategy its part in each generation.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::conclusion::{conclude, nothing_left};
use super::departure::Departure;
use super::prepare::{Prepared, share_threads};
use super::snapshot::Snapshots;
use super::terminal::{say, warn};
use crate::checkpoint::Lock;
use crate::error::{Error, Result};
use crate::launch::{ActiveGeneration, ElasticMembership, Next, StateVersion};
use crate::parallel::{Assignment, GenerationReport, Held, Membership, Observer, Plan, TrainingState};

/// Prints the overview of the run.
pub(super) type Announce = Box<dyn Fn(&Prepared) + Send + Sync>;

pub(super) struct Elastic {
    pub(super) membership: Arc<dyn ElasticMembership>,
    pub(super) prepared: Prepared,
    pub(super) snapshots: Snapshots,
    /// Called at the first generation of this process.
    pub(super) announce: Announce,
    pub(super) own: Mutex<Own>,
    /// The share of this process in the lock of the run's directory.
    pub(super) lock: Mutex<Option<Lock>>,
    pub(super) departure: Arc<Departure>,
}

/// What this process brings to the next generation.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// The generation it took part in last.
    generation: u64,
    pub(super) holds: StateVersion,
    pub(super) stages: Range<usize>,
    devices: Vec<usize>,
    /// The last step from which the run went back.
    discarded: usize,
}

impl Own {
    pub(super) fn with_devices(devices: Vec<usize>) -> Self {
        Self { devices, ..Self::default() }
    }

    /// Notes how a generation ended; returns the state, and why this process left it on its own, if it did.
    ///
    /// # Errors
    /// [`Error::Difference`] if the run does not get beyond a step after which replicas differed before.
    fn part(&mut self, held: Held) -> Result<(Option<TrainingState>, Option<String>)> {
        let Held { state, stages, failed, discarded } = held;
        if let Some((step, how)) = discarded {
            if step <= self.discarded {
                return Err(Error::Difference(how));
            }
            let fault = how.split(';').next().unwrap_or_default();
            warn(&format!("warning: {fault}; the run goes back to its last checkpoint"));
            (self.discarded, self.holds, self.stages) = (step, StateVersion::default(), 0..0);
            return Ok((None, Some(fault.to_string())));
        }
        self.stages = stages;
        self.devices.retain(|device| !failed.iter().any(|(lost, _)| lost == device));
        let step = |state: &TrainingState| state.position.global_step as u64;
        let holds = state.as_ref().map(|state| StateVersion { generation: self.generation, step: step(state) });
        self.holds = holds.unwrap_or_default();
        Ok((state, failed.into_iter().next().map(|(device, how)| format!("device {device} failed: {how}"))))
    }
}

impl Membership for Elastic {
    fn next(&self, held: Option<Held>, observer: &mut dyn Observer) -> Result<Option<Assignment>> {
        let mut own = self.own();
        let (mut state, failure) = held.map_or(Ok((None, None)), |held| own.part(held))?;
        let since = self.snapshots.clock.since_step();
        let waiting = Instant::now();
        let met = self.meet(&mut own, &mut state, failure).inspect_err(|_| {
            self.departure.save_or_warn(state.as_ref().filter(|_| self.has_all(&own)), &self.snapshots)
        })?;
        let active = match met {
            Next::Begin(active) => active,
            Next::Left => {
                self.departure.has_left.store(true, Ordering::SeqCst);
                return Ok(None);
            }
            Next::Complete => {
                self.departure.is_late.store(true, Ordering::SeqCst);
                return Ok(None);
            }
        };
        self.departure.forget();
        let step = state.as_ref().map_or(0, |state| state.position.global_step as u64);
        let first = own.generation == 0;
        (own.generation, own.holds) = (active.number, StateVersion { generation: active.number, step });
        own.stages = 0..self.prepared.plan.world.stages;
        let pause = since.map(|since| since + waiting.elapsed());
        self.begin(active, state, pause, first, observer).map(Some)
    }

    fn complete(&self) -> Result<bool> {
        self.membership.complete()
    }
}

impl Elastic {
    /// Waits for the next generation, and sets `held` to the state with which all of its processes begin.
    fn meet(
        &self,
        own: &mut Own,
        held: &mut Option<TrainingState>,
        mut failure: Option<String>,
    ) -> Result<Next<ActiveGeneration>> {
        loop {
            let whole = held.as_ref().filter(|_| self.has_all(own));
            let mut keep = || whole.map_or(Ok(()), |state| self.departure.save(state, &self.snapshots));
            let active = match self.membership.next(own.holds, &own.devices, failure.take(), &mut keep)? {
                Next::Begin(active) => active,
                Next::Left => return Ok(Next::Left),
                Next::Complete => {
                    say("the run is complete: other processes have finished it");
                    return Ok(Next::Complete);
                }
            };
            // A late process must not open the files of a generation that is over.
            let confirm = |is_from_disk| active.generation.confirm().map(|()| is_from_disk).map_err(Error::from);
            match self.agree(&active, own, held).and_then(confirm) {
                Ok(true) if self.is_complete(held.as_ref()) => {
                    return self.conclude(&active, held.as_ref()).map(|()| Next::Complete);
                }
                Ok(_) => {
                    if active.world.rank == 0
                        && let Some(state) = held.as_ref().filter(|state| self.is_complete(Some(state)))
                    {
                        // Whoever had to write the last checkpoint may be lost.
                        self.departure.save(state, &self.snapshots)?;
                    }
                    return Ok(Next::Begin(active));
                }
                // Another process was lost in the meantime, so there is a new generation.
                Err(Error::PeerLost(why)) => {
                    tracing::debug!("generation {} ended before it began: {why}", active.number);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the state of this process is that of the whole model.
    fn has_all(&self, own: &Own) -> bool {
        own.stages == (0..self.prepared.plan.world.stages)
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold(&self, lock: Option<Lock>) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = lock;
    }

    /// Leaves the run after a signal, once others continue it; false if there are none.
    pub(super) fn leaver(&self) -> impl Fn(i32) -> bool + Send + Sync + use<> {
        let (membership, departure) = (self.membership.clone(), self.departure.clone());
        move |number| {
            let leaves = membership.drain();
            if leaves {
                departure.signal.store(number, Ordering::SeqCst);
            }
            leaves
        }
    }

    pub(super) fn is_complete(&self, held: Option<&TrainingState>) -> bool {
        held.is_some_and(|state| self.prepared.plan.is_complete(&state.position))
    }

    /// Ends a run whose state on the disk is complete.
    fn conclude(&self, active: &ActiveGeneration, held: Option<&TrainingState>) -> Result<()> {
        let Some(TrainingState { position, .. }) = held else { return Ok(()) };
        say(&nothing_left(&self.prepared.plan, position));
        if active.world.rank > 0 {
            return Ok(());
        }
        conclude(
            &self.snapshots.config,
            &self.snapshots.clock.directory(),
            [position.epoch, position.global_step],
            None,
        )
    }

    fn begin(
        &self,
        active: ActiveGeneration,
        state: Option<TrainingState>,
        pause: Option<Duration>,
        first: bool,
        observer: &mut dyn Observer,
    ) -> Result<Assignment> {
        let ActiveGeneration { number, world, local_processes, processes, generation, why } = active;
        let report = GenerationReport {
            number,
            position: state.as_ref().map(|state| state.position.clone()).unwrap_or_default(),
            members: world.processes(),
            hosted: world.hosted(),
            why,
            pause,
        };
        let threads = share_threads(self.snapshots.config.run.threads, local_processes);
        let plan = Arc::new(Plan { world, threads, ..Plan::clone(&self.prepared.plan) });
        if first {
            plan.stop.begin();
            (self.announce)(&Prepared { plan: plan.clone(), ..self.prepared.clone() });
        }
        observer.generation(&report)?;
        Ok(Assignment { plan, processes, generation, state })
    }
}
