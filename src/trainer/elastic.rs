//! An elastic run: gives the strategy its part in each generation.
//!
//! A generation begins with a comparison of the states that its processes hold. The first process that took part in the
//! newest generation sends its state to those that hold another one or none. If no process holds a state, the first one
//! reads the run's directory, as at the start of any run.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::conclusion::{conclude, nothing_left};
use super::departure::Departure;
use super::origin::{self, Origin};
use super::prepare::{Prepared, share_threads};
use super::resume::restore;
use super::snapshot::Snapshots;
use super::terminal::{say, warn};
use super::together::{KEY, encode, receive};
use crate::checkpoint::{self, Loaded, Lock, Resume, Snapshot, run_dir};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::launch::{ActiveGeneration, ElasticMembership, Next, StateVersion};
use crate::parallel::Key;
use crate::parallel::{Assignment, GenerationReport, Held, Membership, Observer, Plan, Processes, TrainingState};

/// Prints the overview of the run.
pub(super) type Announce = Box<dyn Fn(&Prepared) + Send + Sync>;

/// This process in an elastic run.
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
    holds: StateVersion,
    devices: Vec<usize>,
    /// The last step from which the run went back.
    discarded: usize,
}

impl Own {
    /// For a process that joins.
    pub(super) fn with_devices(devices: Vec<usize>) -> Self {
        Self { devices, ..Self::default() }
    }

    /// Notes how a generation ended; returns the state, and why this process left it on its own, if it did.
    ///
    /// # Errors
    /// [`Error::Difference`] if the run does not get beyond a step after which replicas differed before.
    fn part(&mut self, held: Held) -> Result<(Option<TrainingState>, Option<String>)> {
        let Held { state, failed, discarded } = held;
        if let Some((step, how)) = discarded {
            if step <= self.discarded {
                return Err(Error::Difference(how));
            }
            let fault = how.split(';').next().unwrap_or_default();
            warn(&format!("warning: {fault}; the run goes back to its last checkpoint"));
            (self.discarded, self.holds) = (step, StateVersion::default());
            return Ok((None, Some(fault.to_string())));
        }
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
        let met = self
            .meet(&own, &mut state, failure)
            .inspect_err(|_| self.departure.save_or_warn(state.as_ref(), &self.snapshots))?;
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
        own: &Own,
        held: &mut Option<TrainingState>,
        mut failure: Option<String>,
    ) -> Result<Next<ActiveGeneration>> {
        loop {
            let mut keep = || held.as_ref().map_or(Ok(()), |state| self.departure.save(state, &self.snapshots));
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
            match self.agree(&active, own.holds, held).and_then(confirm) {
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

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, lock: Option<Lock>) {
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

    fn is_complete(&self, held: Option<&TrainingState>) -> bool {
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

    /// Sets `held` to the state with which the generation starts, `None` for a new run; returns whether it is from the disk.
    fn agree(&self, active: &ActiveGeneration, holds: StateVersion, held: &mut Option<TrainingState>) -> Result<bool> {
        // The epoch too: the last step of one may be followed by its end on some processes only.
        let epoch = held.as_ref().map_or(0, |state| state.position.epoch as u64);
        let own = [holds.generation, holds.step, epoch];
        if holds == StateVersion::default() {
            // Releases this process's share, since the process that reads the disk needs the lock for itself.
            self.hold(None);
        }
        let processes = active.processes.as_ref();
        let gather = |processes: &Processes| processes.gather_from_all(Key { micro_batch: 1, ..KEY }, &own);
        let all = processes.map_or_else(|| Ok(own.to_vec()), gather)?;
        let all: Vec<[u64; 3]> = all.as_chunks().0.to_vec();
        let newest = all.iter().map(|[generation, ..]| *generation).max().unwrap_or_default();
        let source = all.iter().position(|[generation, ..]| *generation == newest).unwrap_or_default();
        match processes {
            processes if newest == 0 => {
                *held = self.read_disk(active.number, processes)?;
                return Ok(true);
            }
            Some(processes) if all.iter().any(|other| *other != all[source]) => {
                let sent = held.as_ref().filter(|_| processes.rank() == source);
                let sent = sent.map(|state| encode(&self.origin(state.clone())));
                if own == all[source] {
                    processes.broadcast_to_all(KEY, source, sent)?;
                } else {
                    *held = self.take_up(receive(processes, source)?)?;
                }
            }
            _ => {}
        }
        Ok(false)
    }

    /// The state in the run's directory, read by the first process.
    fn read_disk(&self, generation: u64, processes: Option<&Processes>) -> Result<Option<TrainingState>> {
        let origin = match processes.filter(|processes| processes.rank() > 0) {
            Some(processes) => receive(processes, 0)?,
            None => {
                let config = self.config_after(generation);
                let mut origin = origin::origin(&config, &mut |warning| warn(&format!("warning: {warning}")))?;
                // Before the others get the directory and join the lock.
                origin.lock = origin.lock.map(|lock| lock.share(&origin.directory)).transpose()?;
                processes.map_or(Ok(()), |it| it.broadcast_to_all(KEY, 0, Some(encode(&origin))).map(drop))?;
                origin
            }
        };
        self.take_up(origin)
    }

    /// A state in the form of one from the disk.
    fn origin(&self, state: TrainingState) -> Origin {
        let clock = &self.snapshots.clock;
        let Snapshot { step, epoch, files, .. } = self.snapshots.of(state, self.snapshots.identity());
        let files = files.into_iter().map(|(name, content)| (name, content.into_bytes())).collect();
        let checkpoint = Loaded { path: "the state of another process".into(), step, epoch, files };
        let (directory, session_seconds) = (clock.directory(), clock.session());
        Origin { directory, session_seconds, checkpoint: Some(checkpoint), lock: None }
    }

    fn take_up(&self, origin: Origin) -> Result<Option<TrainingState>> {
        let Snapshots { config, clock, .. } = &self.snapshots;
        let Origin { directory, session_seconds, checkpoint, lock } = origin;
        // A directory named for this process wins, in case this process writes.
        let named = Some(&config.run.output_dir).filter(|named| !named.as_os_str().is_empty());
        let directory = named.cloned().unwrap_or(directory);
        std::fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        self.hold(Some(lock.map_or_else(|| Lock::join(&directory), Ok)?));
        let restored = checkpoint.map(|checkpoint| restore(config, &self.prepared, &checkpoint)).transpose()?;
        let seconds = restored.as_ref().map_or(0.0, |(_, state)| state.elapsed_seconds);
        clock.set(directory, seconds, session_seconds);
        self.prepared.plan.stop.spent(Duration::try_from_secs_f64(session_seconds).unwrap_or_default());
        Ok(restored.map(|(state, _)| state))
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

    /// If all members were lost, or the run is complete, resumes from the files, whatever the command says about the
    /// start. Only in a named directory: the latest of the numbered ones may belong to another run.
    fn config_after(&self, generation: u64) -> Config {
        let mut config = self.snapshots.config.clone();
        let directory = &config.run.output_dir;
        let is_there = !directory.as_os_str().is_empty() && run_dir::is_begun(directory);
        let goes_on = is_there && config.checkpoint.resume == Resume::Off;
        if goes_on && (generation > 1 || self.has_completed(directory)) {
            config.checkpoint.resume = Resume::Latest;
        }
        config
    }

    /// Whether this very command has run to its end in `directory`.
    fn has_completed(&self, directory: &Path) -> bool {
        let config = &self.snapshots.config;
        let Ok(checkpoint) = checkpoint::read(&directory.join("checkpoints/latest")) else { return false };
        let saved = checkpoint.files.get("config.toml").and_then(|saved| std::str::from_utf8(saved).ok());
        let is_same = |saved: Config| saved.shared() == config.shared();
        let is_own = saved.and_then(|saved| toml::from_str(saved).ok()).is_some_and(is_same);
        is_own && restore(config, &self.prepared, &checkpoint).is_ok_and(|(state, _)| self.is_complete(Some(&state)))
    }
}
