//! The directory of the run, which all members share, with the real store of checkpoints. Saves take long or stall, and
//! that of a process which dies meanwhile leaves one of the states that `checkpoint/mod.rs` lists.

use std::collections::BTreeMap;
use std::fs;

use tempfile::TempDir;

use super::member::{Stage, Trained};
use super::{Event, World};
use crate::checkpoint::{Keep, Snapshot, Store, Which};

/// A save that is under way.
#[derive(Debug, Clone, Copy)]
pub struct Save {
    who: usize,
    state: Trained,
    /// Whether others may save at the same time.
    is_beside: bool,
}

#[derive(Debug, Default)]
pub struct Disk {
    /// Until when it stalls.
    pub stalled: u64,
    writes: u64,
    under_way: BTreeMap<u64, Save>,
    directory: Option<TempDir>,
}

impl Disk {
    fn directory(&mut self) -> &std::path::Path {
        let new = || {
            let memory = std::path::Path::new("/dev/shm");
            let parent = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
            TempDir::new_in(parent).expect("a directory")
        };
        self.directory.get_or_insert_with(new).path()
    }

    /// What a process would resume from.
    pub fn latest(&mut self) -> Option<Trained> {
        let directory = self.directory();
        if !directory.join("checkpoints").exists() {
            return None;
        }
        Store::open(directory).expect("it can be repaired");
        let loaded = Store::at(directory).load(Which::Latest, &mut |_| ()).ok()?;
        let text = String::from_utf8(loaded.files["model"].clone()).expect("text");
        let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().expect("a number")).collect();
        Some(Trained { step: loaded.step, epoch: loaded.epoch, weights: numbers[0] })
    }
}

fn snapshot(state: Trained) -> Snapshot {
    let content = state.weights.to_string().into_bytes().into();
    Snapshot { step: state.step, epoch: state.epoch, accuracy: None, files: vec![("model".into(), content)] }
}

impl World {
    /// Reads the directory, whose lock nobody else may share.
    pub(super) fn read_disk(&mut self, who: usize) -> Result<Option<Trained>, String> {
        let others = self.processes.iter().enumerate().filter(|(other, it)| *other != who && !it.is_over());
        if others.into_iter().any(|(_, it)| it.has_lock) {
            return Err("the directory is that of another run".into());
        }
        self.processes[who].has_lock = true;
        let found = self.disk.latest();
        self.judge_read(found);
        Ok(found)
    }

    /// The member becomes the one that saves.
    pub(super) fn open_store(&mut self, who: usize) {
        self.processes[who].store = Some(Store::open(self.disk.directory()).expect("a store"));
    }

    /// The thread of a member that writes checkpoints begins one.
    pub(super) fn write(&mut self, who: usize, state: Trained, is_beside: bool) {
        self.disk.writes += 1;
        let write = self.disk.writes;
        self.disk.under_way.insert(write, Save { who, state, is_beside });
        self.processes[who].write = Some(write);
        let at = self.disk.stalled.max(self.now) + self.random.within(5..=600);
        self.at(at, Event::Written { who, write });
    }

    pub(super) fn written(&mut self, who: usize, write: u64) {
        let Some(save) = self.disk.under_way.remove(&write) else { return };
        if self.processes[who].is_over() {
            return self.tear(save.state);
        }
        self.put(save);
        self.processes[who].write = None;
        match self.processes[who].stage {
            Stage::Keeping { left } => self.kept(who, left),
            Stage::Slot { ends } => self.save(who, ends),
            Stage::Parting => self.part(who, None),
            Stage::Saving => self.announce_end(who),
            _ => {}
        }
    }

    pub(super) fn save_at_once(&mut self, who: usize, state: Trained) {
        self.put(Save { who, state, is_beside: true });
    }

    fn put(&mut self, Save { who, state, is_beside }: Save) {
        let directory = self.disk.directory().to_path_buf();
        let saved = match self.processes[who].store.as_mut().filter(|_| !is_beside) {
            Some(store) => store.save(&snapshot(state), false, Keep { last: 2, best: 0 }),
            None => Store::save_beside_others(&directory, &snapshot(state)),
        };
        self.judge_saved(state, &saved.expect("a checkpoint can be saved"));
    }

    /// A process died while it saved: a part of the new directory, no pointer to it, or its predecessor set aside.
    fn tear(&mut self, state: Trained) {
        let directory = self.disk.directory().join("checkpoints");
        let name = format!("step-{:08}", state.step);
        self.say(|| format!("checkpoint {} is torn", state.step));
        if self.random.once_in(2) && directory.join(&name).exists() && !directory.join(format!("{name}.old")).exists() {
            fs::rename(directory.join(&name), directory.join(format!("{name}.old"))).expect("a rename");
        }
        let torn = directory.join(format!("{name}.{:016x}.tmp", self.random.next()));
        fs::create_dir_all(&torn).expect("a directory");
        fs::write(torn.join("model"), "1").expect("a file");
    }
}
