//! An elastic run: leads the strategy from one generation to the next.
//!
//! A generation begins with a look at what everybody holds. The first process that took part in the newest generation
//! has the state that counts; whoever holds another one, or nothing, gets it from there. When nobody holds anything the
//! first process looks on the disk, as at the start of any run.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::origin::{self, Origin};
use super::prepare::{Prepared, share_threads};
use super::resume::restore;
use super::snapshot::Snapshots;
use super::terminal::warn;
use super::together::{KEY, encode, receive};
use crate::checkpoint::{Loaded, Lock, Resume};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::launch::{Meeting, Members, Standing};
use crate::parallel::collective::Key;
use crate::parallel::{Assignment, GenerationReport, Held, Membership, Observer, Plan, Processes, TrainingState};

/// Describes the run to the person at the terminal.
pub(super) type Announce = Box<dyn Fn(&Prepared) + Send + Sync>;

/// This process in an elastic run.
pub(super) struct Elastic {
    pub(super) members: Arc<dyn Members>,
    pub(super) prepared: Prepared,
    pub(super) snapshots: Snapshots,
    /// Called at the first generation of this process.
    pub(super) announce: Announce,
    pub(super) own: Mutex<Own>,
    /// The share of this process in the run's directory.
    pub(super) lock: Mutex<Option<Lock>>,
    pub(super) departure: Arc<Departure>,
}

/// How this process left the run, if it did.
#[derive(Debug, Default)]
pub(super) struct Departure {
    /// The signal that asked for it; 0 for none.
    pub(super) signal: AtomicI32,
    pub(super) has_left: AtomicBool,
}

/// What this process brings to the next generation.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// The generation it took part in last.
    generation: u64,
    standing: Standing,
    devices: Vec<usize>,
}

impl Own {
    /// Of a process that comes.
    pub(super) fn with_devices(devices: Vec<usize>) -> Self {
        Self { devices, ..Self::default() }
    }

    /// Takes in how a generation ended: the state, and why this process left it by itself, if it did.
    fn part(&mut self, Held { state, failed }: Held) -> (Option<TrainingState>, Option<String>) {
        self.devices.retain(|device| !failed.iter().any(|(lost, _)| lost == device));
        let step = |state: &TrainingState| state.position.global_step;
        let standing = state.as_ref().map(|state| Standing { generation: self.generation, step: step(state) });
        self.standing = standing.unwrap_or_default();
        (state, failed.into_iter().next().map(|(device, how)| format!("device {device} failed: {how}")))
    }
}

impl Membership for Elastic {
    fn next(&self, held: Option<Held>, observer: &mut dyn Observer) -> Result<Option<Assignment>> {
        let mut own = self.own();
        let (mut state, mut failure) = held.map_or((None, None), |held| own.part(held));
        let since = self.snapshots.clock.since_step();
        let waiting = std::time::Instant::now();
        loop {
            let mut keep = || state.clone().map_or(Ok(()), |state| observer.checkpoint(state));
            let met = self.members.next(own.standing, &own.devices, failure.take(), &mut keep)?;
            let Some(meeting) = met else {
                self.departure.has_left.store(true, Ordering::SeqCst);
                return Ok(None);
            };
            match self.agree(&meeting, own.standing, &mut state) {
                Ok(()) => {}
                // Somebody was lost in the meantime, which makes another generation.
                Err(Error::PeerLost(why)) => {
                    tracing::debug!("generation {} ended before it began: {why}", meeting.number);
                    continue;
                }
                Err(error) => return Err(error),
            }
            let step = state.as_ref().map_or(0, |state| state.position.global_step);
            let first = own.generation == 0;
            (own.generation, own.standing) = (meeting.number, Standing { generation: meeting.number, step });
            let pause = since.map(|since| since + waiting.elapsed());
            return self.begin(meeting, state, pause, first, observer).map(Some);
        }
    }

    fn complete(&self) -> Result<bool> {
        self.members.complete()
    }
}

impl Elastic {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, lock: Option<Lock>) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = lock;
    }

    /// Leaves the run at a signal, once others go on with it; false if there are none.
    pub(super) fn leaver(&self) -> impl Fn(i32) -> bool + Send + Sync + use<> {
        let (members, departure) = (self.members.clone(), self.departure.clone());
        move |number| {
            let leaves = members.drain();
            if leaves {
                departure.signal.store(number, Ordering::SeqCst);
            }
            leaves
        }
    }

    /// Makes `held` the state that the generation starts from: none for a run that begins.
    fn agree(&self, meeting: &Meeting, standing: Standing, held: &mut Option<TrainingState>) -> Result<()> {
        let own = [standing.generation, standing.step as u64];
        if standing == Standing::default() {
            // The process that looks on the disk must find nobody else there.
            self.hold(None);
        }
        let processes = meeting.processes.as_ref();
        let gather = |processes: &Processes| processes.gather_from_all(Key { micro_batch: 1, ..KEY }, &own);
        let all = processes.map_or_else(|| Ok(own.to_vec()), gather)?;
        let all: Vec<[u64; 2]> = all.as_chunks().0.to_vec();
        let newest = all.iter().map(|[generation, _]| *generation).max().unwrap_or_default();
        let source = all.iter().position(|[generation, _]| *generation == newest).unwrap_or_default();
        match processes {
            processes if newest == 0 => *held = self.read_disk(meeting.number, processes)?,
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
        Ok(())
    }

    /// What the run's directory has; the first process looks.
    fn read_disk(&self, generation: u64, processes: Option<&Processes>) -> Result<Option<TrainingState>> {
        let origin = match processes.filter(|processes| processes.rank() > 0) {
            Some(processes) => receive(processes, 0)?,
            None => {
                let config = config_after(&self.snapshots.config, generation);
                let mut origin = origin::origin(&config, &mut |warning| warn(&format!("warning: {warning}")))?;
                // Before the others hear of the directory and join.
                origin.lock = origin.lock.map(Lock::share);
                processes.map_or(Ok(()), |it| it.broadcast_to_all(KEY, 0, Some(encode(&origin))).map(drop))?;
                origin
            }
        };
        self.take_up(origin)
    }

    /// A state as if it came from the disk.
    fn origin(&self, state: TrainingState) -> Origin {
        let clock = &self.snapshots.clock;
        let snapshot = self.snapshots.of(state);
        let (step, epoch, files) = (snapshot.step, snapshot.epoch, snapshot.files.into_iter().collect());
        let checkpoint = Loaded { path: "the state of another process".into(), step, epoch, files };
        let (directory, session_seconds) = (clock.directory(), clock.session());
        Origin { directory, session_seconds, checkpoint: Some(checkpoint), lock: None }
    }

    fn take_up(&self, origin: Origin) -> Result<Option<TrainingState>> {
        let Snapshots { config, clock, .. } = &self.snapshots;
        let Origin { directory, session_seconds, checkpoint, lock } = origin;
        self.hold(lock.or_else(|| Lock::join(&directory)));
        let restored = checkpoint.map(|checkpoint| restore(config, &self.prepared, &checkpoint)).transpose()?;
        let seconds = restored.as_ref().map_or(0.0, |(_, state)| state.elapsed_seconds);
        clock.set(directory, seconds, session_seconds);
        self.prepared.plan.stop.spent(Duration::try_from_secs_f64(session_seconds).unwrap_or_default());
        Ok(restored.map(|(state, _)| state))
    }

    fn begin(
        &self,
        meeting: Meeting,
        state: Option<TrainingState>,
        pause: Option<Duration>,
        first: bool,
        observer: &mut dyn Observer,
    ) -> Result<Assignment> {
        let Meeting { number, world, neighbours, processes, generation, why } = meeting;
        let report = GenerationReport {
            number,
            position: state.as_ref().map(|state| state.position.clone()).unwrap_or_default(),
            members: world.processes(),
            hosted: world.hosted(),
            why,
            pause,
        };
        let threads = share_threads(self.snapshots.config.run.threads, neighbours);
        let plan = Arc::new(Plan { world, threads, ..Plan::clone(&self.prepared.plan) });
        if first {
            plan.stop.begin();
            (self.announce)(&Prepared { plan: plan.clone(), ..self.prepared.clone() });
        }
        observer.generation(&report)?;
        Ok(Assignment { plan, processes, generation, state })
    }
}

/// A run that nobody is left of but its files goes on from them, whatever the command said about its start. Its
/// directory must have a name: the latest of the numbered ones may be another run's.
fn config_after(config: &Config, generation: u64) -> Config {
    let mut config = config.clone();
    let directory = &config.run.output_dir;
    let is_there = !directory.as_os_str().is_empty() && directory.join("checkpoints/latest").exists();
    if generation > 1 && config.checkpoint.resume == Resume::Off && is_there {
        config.checkpoint.resume = Resume::Latest;
    }
    config
}
