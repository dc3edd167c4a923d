//! The state with which a generation of an elastic run begins.
//!
//! The processes compare the states that they hold. Members of the newest generation send what the others lack: one of
//! them sends the whole state or, with pipeline stages, several send a part each. If no process holds a state, or all
//! processes of a stage were lost, the first process reads the run's directory.

use std::path::Path;
use std::time::Duration;

use kiln_engine::checkpoint::{self, Loaded, Lock, Resume, Snapshot, Store, Which, run_dir};
use kiln_engine::parallel::{Key, Processes, TrainingState};
use kiln_membership::{Holding, StateVersion, sources};
use kiln_system::{Error, Result, shown};

use super::broadcast::{KEY, decided, encode, receive};
use super::elastic::{Elastic, LocalState};
use super::origin::{self, Origin};
use super::resume::restore;
use super::snapshot::Snapshots;
use super::terminal::warn;
use crate::config::Config;
use crate::launch::ActiveGeneration;

/// The number of the first part of a state in the keys of what is sent.
const FIRST_PART: usize = 2;

impl Elastic {
    /// Sets `held` to the state with which the generation starts, `None` for a new run; returns whether it is from the
    /// disk. `local` always describes `held`, even if another process is lost meanwhile.
    pub(super) fn agree(
        &self,
        active: &ActiveGeneration,
        local: &mut LocalState,
        held: &mut Option<TrainingState>,
    ) -> Result<bool> {
        if local.holds == StateVersion::default() {
            // Releases this process's share, since the process that reads the disk needs the lock exclusively.
            *self.lock.lock() = None;
        }
        let epoch = held.as_ref().map_or(0, |state| state.position.epoch as u64);
        let mine = Holding { version: [local.holds.generation, local.holds.step, epoch], stages: local.stages.clone() };
        let processes = active.processes.as_ref();
        let all = held_by_all(processes, &mine)?;
        if all.iter().all(|other| other.version[0] == 0) {
            *held = self.read_disk(active.number, processes)?;
            return Ok(true);
        }
        let Some(sources) = sources(&all, active.world.stages) else {
            *held = self.go_back(processes)?;
            let generation = all.iter().map(|other| other.version[0]).max().unwrap_or_default();
            let holds = held.as_ref().map(|state| StateVersion { generation, step: state.position.global_step as u64 });
            (local.holds, local.stages) = (holds.unwrap_or_default(), 0..active.world.stages);
            return Ok(true);
        };
        let Some(processes) = processes.filter(|_| all.iter().any(|other| *other != all[sources[0]])) else {
            return Ok(false);
        };
        let version = all[sources[0]].version;
        let is_current = mine.version == version;
        let has_all = is_current && mine.stages.len() == active.world.stages;
        // What this process holds stays until it has all.
        let mut whole = held.clone().filter(|_| is_current && !has_all);
        for (number, source) in sources.into_iter().enumerate() {
            let key = Key { micro_batch: FIRST_PART + number, ..KEY };
            let part = &all[source].stages;
            if is_current && mine.stages.start <= part.start && part.end <= mine.stages.end {
                let sent = held.as_ref().filter(|_| processes.rank() == source);
                let sent = sent.map(|state| encode(&self.origin(state.clone())));
                processes.broadcast_to_all(key, source, sent)?;
                continue;
            }
            let origin = receive(processes, key, source)?;
            match (&mut whole, &origin.checkpoint) {
                (Some(whole), Some(part)) => whole.join(restore(&self.snapshots.config, &self.prepared, part)?.0),
                _ => whole = self.take_up(origin)?,
            }
        }
        if !has_all {
            *held = whole;
            local.holds = StateVersion { generation: version[0], step: version[1] };
            local.stages = 0..active.world.stages;
        }
        Ok(false)
    }

    /// The state in the run's directory, read by the first process.
    fn read_disk(&self, generation: u64, processes: Option<&Processes>) -> Result<Option<TrainingState>> {
        let origin = decided(processes, || {
            let config = self.config_after(generation);
            let mut origin = origin::origin(&config, &mut |warning| warn(&format!("warning: {warning}")))?;
            // Before the others get the directory and join the lock.
            origin.lock = origin.lock.map(|lock| lock.share(&origin.directory)).transpose()?;
            Ok(origin)
        })?;
        self.take_up(origin)
    }

    /// The last checkpoint of the current run, read by the first process. A stopped process still has its share of the
    /// lock, so the directory is not locked again.
    fn go_back(&self, processes: Option<&Processes>) -> Result<Option<TrainingState>> {
        let origin = decided(processes, || {
            let directory = self.snapshots.config.run.output_dir.clone();
            let load = || Store::at(&directory).load(Which::Latest, &mut |note| warn(&format!("warning: {note}")));
            let checkpoint = run_dir::is_begun(&directory).then(load).transpose()?;
            Ok(Origin { session_seconds: self.snapshots.clock.session(), checkpoint, lock: None, directory })
        })?;
        let place = shown(&origin.directory);
        let back = match &origin.checkpoint {
            Some(checkpoint) => format!("its last checkpoint, after step {}", checkpoint.step),
            None => format!("its beginning, since '{place}' has no checkpoint"),
        };
        warn(&format!("warning: all processes of a stage were lost; the run goes back to {back}"));
        self.take_up(origin)
    }

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
        *self.lock.lock() = Some(lock.map_or_else(|| Lock::join(&directory), Ok)?);
        let restored = checkpoint.map(|checkpoint| restore(config, &self.prepared, &checkpoint)).transpose()?;
        let seconds = restored.as_ref().map_or(0.0, |(_, state)| state.elapsed_seconds);
        clock.set(directory, seconds, session_seconds);
        self.prepared.plan.stop.spent(Duration::try_from_secs_f64(session_seconds).unwrap_or_default());
        Ok(restored.map(|(state, _)| state))
    }

    /// If all members were lost, or the run is complete, resumes from the files, even if the command asks for a new
    /// run. Only in a named directory: the latest numbered one may belong to another run.
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

fn held_by_all(processes: Option<&Processes>, local: &Holding) -> Result<Vec<Holding>> {
    let Some(processes) = processes else { return Ok(vec![local.clone()]) };
    let [generation, step, epoch] = local.version;
    let values = [generation, step, epoch, local.stages.start as u64, local.stages.end as u64];
    let all = processes.gather_from_all(Key { micro_batch: 1, ..KEY }, &values)?;
    let read = |&[generation, step, epoch, start, end]: &[u64; 5]| Holding {
        version: [generation, step, epoch],
        stages: start as usize..end as usize,
    };
    Ok(all.as_chunks().0.iter().map(read).collect())
}
