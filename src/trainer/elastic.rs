//! An elastic run: gives the strategy its part in each generation.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kiln_engine::checkpoint::Lock;
use kiln_engine::parallel::{
    Assignment, GenerationReport, GenerationResult, Membership, Observer, Plan, StartingPoint, TrainingState,
};
use kiln_engine::state::sha256;
use kiln_membership::{Next, StateVersion};
use kiln_system::{Error, Result};
use kiln_training::{Network, Training};
use parking_lot::Mutex;

use super::end::{nothing_left, summarize_complete};
use super::leave::Leave;
use super::logs::Logs;
use super::prepare::{Prepared, share_threads};
use super::serving::MovingPage;
use super::session::Session;
use super::snapshot::Snapshots;
use super::succession::Succession;
use super::terminal::{say, warn};
use crate::launch::{self, ActiveGeneration, ElasticMembership, FixedMembership};

/// Prints the overview of the run in a directory.
type Introduce = Box<dyn Fn(&Prepared, Option<&Path>) + Send + Sync>;

/// Joins the others and takes part until the run is complete or this process leaves it; returns the exit code.
pub(super) fn train(
    session: Session,
    network: Box<dyn Network>,
    alone: &dyn FixedMembership,
    introduce: Introduce,
) -> Result<u8> {
    let (prepared, snapshots) = (session.prepared.clone(), session.snapshots.clone());
    let (config, stop) = (&snapshots.config, prepared.plan.stop.clone());
    MovingPage::check(config)?;
    let mut shared = config.shared();
    shared.insert("images".into(), prepared.fingerprint.clone());
    shared.insert("weights".into(), sha256(&network.state()));
    let (ordered, transport) = (config.run.deterministic, prepared.transport.clone());
    let membership: Arc<dyn ElasticMembership> =
        launch::join_elastic(&config.parallel, shared, prepared.nanoseconds, ordered, transport)?.into();
    let succession = Succession::new(membership.clone(), session.display);
    let local = Mutex::new(LocalState { devices: config.parallel.gpu_ids.clone(), ..LocalState::default() });
    let (member, lock, leave) = (membership.clone(), Mutex::default(), Arc::default());
    let elastic = Elastic { membership, prepared, snapshots, introduce, local, lock, leave };
    let leave = elastic.leave.clone();
    stop.instead(elastic.leaver());
    let training = session.training(StartingPoint::default(), Logs::default(), Some(succession), Vec::new());
    let training = Training { membership: Some(Box::new(elastic)), ..training };
    let result = session.train(network, training, alone, Some(&leave));
    member.leave(result.as_ref().err().map(Error::to_string).as_deref());
    result
}

pub(super) struct Elastic {
    membership: Arc<dyn ElasticMembership>,
    pub(super) prepared: Prepared,
    pub(super) snapshots: Snapshots,
    introduce: Introduce,
    local: Mutex<LocalState>,
    /// The share of this process in the lock of the run's directory.
    pub(super) lock: Mutex<Option<Lock>>,
    leave: Arc<Leave>,
}

/// What this process brings to the next generation.
#[derive(Debug, Default)]
pub(super) struct LocalState {
    generation: u64,
    pub(super) holds: StateVersion,
    pub(super) stages: Range<usize>,
    devices: Vec<usize>,
    /// The last step from which the run went back.
    discarded: usize,
}

impl LocalState {
    /// Notes how a generation ended; returns the state, and why this process left it on its own, if it did.
    ///
    /// # Errors
    /// [`Error::Difference`] if the run does not get beyond a step after which replicas differed before.
    fn end_generation(&mut self, held: GenerationResult) -> Result<(Option<TrainingState>, Option<String>)> {
        let GenerationResult { state, stages, failed, discarded } = held;
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
    fn next(&self, held: Option<GenerationResult>, observer: &mut dyn Observer) -> Result<Option<Assignment>> {
        let mut local = self.local.lock();
        let (mut state, failure) = held.map_or(Ok((None, None)), |held| local.end_generation(held))?;
        let since = self.snapshots.clock.since_step();
        let waiting = Instant::now();
        let met = self.meet(&mut local, &mut state, failure).inspect_err(|_| {
            self.leave.save_or_warn(state.as_ref().filter(|_| self.has_all(&local)), &self.snapshots)
        })?;
        let active = match met {
            Next::Begin(active) => active,
            Next::Left => {
                self.leave.has_left.store(true, Ordering::SeqCst);
                return Ok(None);
            }
            Next::Complete => {
                self.leave.is_late.store(true, Ordering::SeqCst);
                return Ok(None);
            }
        };
        self.leave.forget();
        let step = state.as_ref().map_or(0, |state| state.position.global_step as u64);
        let first = local.generation == 0;
        (local.generation, local.holds) = (active.number, StateVersion { generation: active.number, step });
        local.stages = 0..self.prepared.plan.world.stages;
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
        local: &mut LocalState,
        held: &mut Option<TrainingState>,
        mut failure: Option<String>,
    ) -> Result<Next<ActiveGeneration>> {
        loop {
            let whole = held.as_ref().filter(|_| self.has_all(local));
            let mut keep = || whole.map_or(Ok(()), |state| self.leave.save(state, &self.snapshots));
            let active = match self.membership.next(local.holds, &local.devices, failure.take(), &mut keep)? {
                Next::Begin(active) => active,
                Next::Left => return Ok(Next::Left),
                Next::Complete => {
                    say("the run is complete: other processes have finished it");
                    return Ok(Next::Complete);
                }
            };
            // A late process must not open the files of a generation that is over.
            let confirm = |is_from_disk| active.generation.confirm().map(|()| is_from_disk).map_err(Error::from);
            match self.agree(&active, local, held).and_then(confirm) {
                Ok(true) if self.is_complete(held.as_ref()) => {
                    return self.summarize(&active, held.as_ref()).map(|()| Next::Complete);
                }
                Ok(_) => {
                    if active.world.rank == 0
                        && let Some(state) = held.as_ref().filter(|state| self.is_complete(Some(state)))
                    {
                        // The process that had to write the last checkpoint may be lost.
                        self.leave.save(state, &self.snapshots)?;
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

    /// Whether the state of this process is the state of the whole model.
    fn has_all(&self, local: &LocalState) -> bool {
        local.stages == (0..self.prepared.plan.world.stages)
    }

    /// Leaves the run after a signal, once others continue it; false if there are none.
    pub(super) fn leaver(&self) -> impl Fn(i32) -> bool + Send + Sync + use<> {
        let (membership, leave) = (self.membership.clone(), self.leave.clone());
        move |number| {
            let leaves = membership.drain();
            if leaves {
                leave.signal.store(number, Ordering::SeqCst);
            }
            leaves
        }
    }

    pub(super) fn is_complete(&self, held: Option<&TrainingState>) -> bool {
        held.is_some_and(|state| self.prepared.plan.is_complete(&state.position))
    }

    /// Ends a run whose state on the disk is complete.
    fn summarize(&self, active: &ActiveGeneration, held: Option<&TrainingState>) -> Result<()> {
        let Some(TrainingState { position, .. }) = held else { return Ok(()) };
        say(&nothing_left(&self.prepared.plan, position));
        if active.world.rank > 0 {
            return Ok(());
        }
        summarize_complete(
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
            let prepared = Prepared { plan: plan.clone(), ..self.prepared.clone() };
            (self.introduce)(&prepared, Some(&self.snapshots.clock.directory()));
        }
        observer.generation(&report)?;
        Ok(Assignment { plan, processes, generation, state })
    }
}
