//! An elastic run: leads the strategy from one generation to the next.
//!
//! A generation begins with a look at what everybody holds. The first process that took part in the newest generation
//! has the state that counts; whoever holds another one, or nothing, gets it from there. When nobody holds anything the
//! first process looks on the disk, as at the start of any run.

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
use crate::checkpoint::{self, Loaded, Lock, Resume, run_dir};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::launch::{Meeting, Members, Next, Standing};
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
        let (mut state, failure) = held.map_or((None, None), |held| own.part(held));
        let since = self.snapshots.clock.since_step();
        let waiting = Instant::now();
        let met = self
            .meet(&own, &mut state, failure)
            .inspect_err(|_| self.departure.save_or_warn(state.as_ref(), &self.snapshots))?;
        let meeting = match met {
            Next::Begin(meeting) => meeting,
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
        let step = state.as_ref().map_or(0, |state| state.position.global_step);
        let first = own.generation == 0;
        (own.generation, own.standing) = (meeting.number, Standing { generation: meeting.number, step });
        let pause = since.map(|since| since + waiting.elapsed());
        self.begin(meeting, state, pause, first, observer).map(Some)
    }

    fn complete(&self) -> Result<bool> {
        self.members.complete()
    }
}

impl Elastic {
    /// Meets for the next generation, which all of its processes begin with the same state: it becomes `held`.
    fn meet(&self, own: &Own, held: &mut Option<TrainingState>, mut failure: Option<String>) -> Result<Next<Meeting>> {
        loop {
            let mut keep = || held.as_ref().map_or(Ok(()), |state| self.departure.save(state, &self.snapshots));
            let meeting = match self.members.next(own.standing, &own.devices, failure.take(), &mut keep)? {
                Next::Begin(meeting) => meeting,
                Next::Left => return Ok(Next::Left),
                Next::Complete => {
                    say("the run is complete: other processes have finished it");
                    return Ok(Next::Complete);
                }
            };
            match self.agree(&meeting, own.standing, held) {
                Ok(Source::Disk) if self.is_complete(held.as_ref()) => {
                    return self.conclude(&meeting, held.as_ref()).map(|()| Next::Complete);
                }
                Ok(_) => return Ok(Next::Begin(meeting)),
                // Somebody was lost in the meantime, which makes another generation.
                Err(Error::PeerLost(why)) => {
                    tracing::debug!("generation {} ended before it began: {why}", meeting.number);
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

    fn is_complete(&self, held: Option<&TrainingState>) -> bool {
        held.is_some_and(|state| self.prepared.plan.is_complete(&state.position))
    }

    /// The run on the disk has nothing left to do.
    fn conclude(&self, meeting: &Meeting, held: Option<&TrainingState>) -> Result<()> {
        let Some(TrainingState { position, .. }) = held else { return Ok(()) };
        say(&nothing_left(&self.prepared.plan, position));
        if meeting.world.rank() > 0 {
            return Ok(());
        }
        conclude(
            &self.snapshots.config,
            &self.snapshots.clock.directory(),
            [position.epoch, position.global_step],
            None,
        )
    }

    /// Makes `held` the state that the generation starts from: none for a run that begins. Answers with where it was.
    fn agree(&self, meeting: &Meeting, standing: Standing, held: &mut Option<TrainingState>) -> Result<Source> {
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
            processes if newest == 0 => {
                *held = self.read_disk(meeting.number, processes)?;
                return Ok(Source::Disk);
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
        Ok(Source::Process)
    }

    /// What the run's directory has; the first process looks.
    fn read_disk(&self, generation: u64, processes: Option<&Processes>) -> Result<Option<TrainingState>> {
        let origin = match processes.filter(|processes| processes.rank() > 0) {
            Some(processes) => receive(processes, 0)?,
            None => {
                let config = self.config_after(generation);
                let mut origin = origin::origin(&config, &mut |warning| warn(&format!("warning: {warning}")))?;
                // Before the others hear of the directory and join.
                origin.lock = origin.lock.map(|lock| lock.share(&origin.directory)).transpose()?;
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
        // A directory that was named for this process counts, should it be the one that writes.
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

    /// A run that nobody is left of but its files goes on from them, whatever the command said about its start; and so
    /// does one that needs nothing more. Its directory must have a name: the latest of the numbered ones may be another
    /// run's.
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

/// Where the state comes from that a generation starts from.
enum Source {
    Disk,
    Process,
}
