//! The directory of a run's checkpoints: `checkpoints/step-00000042/`, and the pointers `latest` and `best`.
//!
//! The store does not interpret its files. The order of its operations makes a kill harmless, as explained in
//! `checkpoint/mod.rs`. [`retain`] decides which checkpoints are kept, [`Manifest`] whether one is intact.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::MANIFEST;
use super::atomic::{point, remove, sync_dir, unique};
use super::content::Content;
use super::manifest::{Manifest, Snapshot};
use super::retention::{Keep, retain};
use crate::error::{Error, Result};
use crate::file::{self, TEXT};

/// How often a process tries to save a checkpoint while others may save the same.
const ATTEMPTS: usize = 4;

/// The extension of a checkpoint in whose place another one is put.
const REPLACED: &str = "old";

/// How the temporary names of checkpoints and pointers begin.
const TEMPORARY: [&str; 3] = ["step-", ".best.", ".latest."];

/// How often a checkpoint is read while the run that owns it moves its pointer or saves its step again.
const MOVES: usize = 100;

/// Between two of these tries.
const PAUSE: Duration = Duration::from_millis(1);

/// Which checkpoint to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The last one that was saved.
    Latest,
    /// The one with the best validation.
    Best,
    /// The directory of a checkpoint, of this run or of another.
    Path(PathBuf),
}

/// A checkpoint whose files are all present and intact.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// Its directory.
    pub path: PathBuf,
    /// Optimizer steps done.
    pub step: usize,
    /// The epoch, from 0, that the next step belongs to.
    pub epoch: usize,
    /// Content of each file by name.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// The checkpoints of one run. Only one store of a directory may be open; [`Store::at`] and [`read`] only read.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    /// The step of `latest` when this store opened or moved it.
    latest: Option<usize>,
}

impl Store {
    /// Opens `<run_dir>/checkpoints`, creates it if necessary, and repairs what a killed run left.
    ///
    /// # Errors
    /// [`Error::Io`] naming the path.
    pub fn open(run_dir: &Path) -> Result<Self> {
        let mut store = Self::at(run_dir);
        fs::create_dir_all(&store.dir).map_err(Error::io("create", &store.dir))?;
        for pointer in ["best", "latest"] {
            let path = store.dir.join(pointer);
            if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_symlink()) {
                let reason = "is not the symlink that a run makes; move it away";
                return Err(Error::Checkpoint(format!("'{}' {reason}", path.display())));
            }
        }
        store.recover()?;
        store.latest = store.target("latest");
        Ok(store)
    }

    /// The checkpoints of the run in `run_dir`, only for [`Store::load`], which changes nothing.
    pub fn at(run_dir: &Path) -> Self {
        Self { dir: run_dir.join("checkpoints"), latest: None }
    }

    /// Saves a checkpoint, moves `latest` to it (and `best` if `is_best`), and deletes those that are no longer kept.
    /// Returns its directory.
    ///
    /// A checkpoint of the same step is replaced. Those of later steps, from before a resume at an earlier one, are
    /// kept until this run has passed them. Nothing is saved where another store has saved this step or a later one since:
    /// that of a process that took over while this one was stopped or waited for the disk.
    ///
    /// # Errors
    /// [`Error::Io`] naming the path; earlier checkpoints are then unchanged.
    pub fn save(&mut self, snapshot: &Snapshot, is_best: bool, keep: Keep) -> Result<PathBuf> {
        let name = directory_name(snapshot.step);
        // Of another store, which has taken over.
        let newer = || self.target("latest").filter(|it| Some(*it) != self.latest && *it >= snapshot.step);
        if let Some(newer) = newer() {
            return Ok(self.dir.join(directory_name(newer)));
        }
        self.publish(&name, snapshot)?;
        // Asked again: this process may have been stopped since.
        if let Some(newer) = newer() {
            return Ok(self.dir.join(directory_name(newer)));
        }
        if is_best {
            point(&self.dir.join("best"), &name)?;
        }
        point(&self.dir.join("latest"), &name)?;
        self.latest = Some(snapshot.step);
        self.prune(snapshot.step, keep)?;
        Ok(self.dir.join(name))
    }

    /// Saves a checkpoint into `<run_dir>/checkpoints` beside other processes, which may have the store open and may
    /// save the same step. Moves `latest` only forward and deletes nothing. Returns the checkpoint's directory.
    ///
    /// # Errors
    /// [`Error::Io`] naming the path.
    pub fn save_beside_others(run_dir: &Path, snapshot: &Snapshot) -> Result<PathBuf> {
        let dir = run_dir.join("checkpoints");
        fs::create_dir_all(&dir).map_err(Error::io("create", &dir))?;
        let (store, name) = (Self { dir, latest: None }, directory_name(snapshot.step));
        if Manifest::read(&store.dir.join(&name)).is_ok_and(|saved| saved.epoch > snapshot.epoch) {
            // The same step, and the end of its epoch.
            return Ok(store.dir.join(name));
        }
        // Retried, since another process may move the same checkpoint at the same time.
        let mut published = store.publish(&name, snapshot);
        for _ in 1..ATTEMPTS {
            published = published.or_else(|_| store.publish(&name, snapshot));
        }
        published?;
        let latest = store.target("latest").filter(|step| store.dir.join(directory_name(*step)).exists());
        if latest.is_none_or(|latest| latest < snapshot.step) {
            point(&store.dir.join("latest"), &name)?;
        }
        Ok(store.dir.join(name))
    }

    /// Loads a checkpoint after verifying every byte of it.
    ///
    /// If the latest or the best one is damaged, `warn` gets the file and the reason, and an older intact one is loaded
    /// (a newer one if there is no older).
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if none is intact, or the one at [`Which::Path`] is not.
    pub fn load(&self, which: &Which, warn: &mut dyn FnMut(String)) -> Result<Loaded> {
        let pointer = match which {
            Which::Latest => "latest",
            Which::Best => "best",
            Which::Path(path) => return read(path),
        };
        if let Ok(loaded) = follow(&self.dir.join(pointer), verify) {
            return Ok(loaded);
        }
        for step in self.candidates(pointer, warn)? {
            match verify(&self.dir.join(directory_name(step))) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => warn(format!("{error}; looking for another checkpoint to use instead")),
            }
        }
        Err(Error::Checkpoint(format!(
            "'{}' holds no intact checkpoint; give another one with --resume PATH, or start anew without --resume",
            self.dir.display()
        )))
    }

    /// The steps to try for a pointer, in this order: its own, earlier ones, later ones, newest first.
    fn candidates(&self, pointer: &str, warn: &mut dyn FnMut(String)) -> Result<Vec<usize>> {
        let mut steps = steps_in(&self.dir)?;
        let target = self.target(pointer).filter(|step| steps.contains(step));
        if target.is_none() && !steps.is_empty() {
            let link = self.dir.join(pointer);
            warn(format!("'{}' points to no checkpoint; looking for the newest intact one", link.display()));
        }
        steps.sort_by_key(|step| (Some(*step) != target, target.is_some_and(|t| *step > t), Reverse(*step)));
        Ok(steps)
    }

    /// The step a pointer names, whether or not that checkpoint exists.
    fn target(&self, pointer: &str) -> Option<usize> {
        step_of(fs::read_link(self.dir.join(pointer)).ok()?.to_str()?)
    }

    /// Makes the snapshot visible under its name, atomically.
    fn publish(&self, name: &str, snapshot: &Snapshot) -> Result<()> {
        let (target, old) = (self.dir.join(name), self.sibling(name, REPLACED));
        let fresh = self.sibling(name, &format!("{}.tmp", unique()));
        let written = write_directory(&fresh, snapshot).and_then(|()| {
            if target.exists() {
                remove(&old)?;
                fs::rename(&target, &old).map_err(Error::io("rename", &target))?;
            }
            fs::rename(&fresh, &target).map_err(Error::io("create", &target)).inspect_err(|_| {
                // Restores the old checkpoint if possible; the first error is returned.
                drop(fs::rename(&old, &target));
            })
        });
        written.inspect_err(|_| drop(fs::remove_dir_all(&fresh)))?;
        sync_dir(&self.dir).map_err(Error::io("write", &self.dir))?;
        remove(&old)
    }

    /// Deletes the checkpoints that are no longer kept, each under a name that is never read.
    fn prune(&self, step: usize, keep: Keep) -> Result<()> {
        let mut steps = steps_in(&self.dir)?;
        steps.retain(|other| *other <= step);
        // Manifests are read only if they matter; a damaged one does not keep its checkpoint.
        let accuracy = |step: &usize| match keep.best {
            ..=1 => None,
            _ => Manifest::read(&self.dir.join(directory_name(*step))).ok()?.accuracy(),
        };
        let known: Vec<_> = steps.iter().map(|step| (*step, accuracy(step))).collect();
        for given_up in retain(&known, self.target("best"), keep) {
            let name = directory_name(given_up);
            let (path, doomed) = (self.dir.join(&name), self.sibling(&name, "tmp"));
            fs::rename(&path, &doomed).map_err(Error::io("remove", &path))?;
            remove(&doomed)?;
        }
        Ok(())
    }

    /// Repairs what a killed run left: restores a checkpoint that was being replaced, removes temporary names.
    fn recover(&self) -> Result<()> {
        for name in names_in(&self.dir)? {
            let path = self.dir.join(&name);
            match name.rsplit_once('.') {
                Some((step, REPLACED)) if step_of(step).is_some() && !self.dir.join(step).exists() => {
                    fs::rename(&path, self.dir.join(step)).map_err(Error::io("rename", &path))?;
                }
                Some((step, REPLACED)) if step_of(step).is_some() => remove(&path)?,
                // What others have put here is left alone.
                Some((_, "tmp")) if TEMPORARY.iter().any(|own| name.starts_with(own)) => remove(&path)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn sibling(&self, name: &str, extension: &str) -> PathBuf {
        self.dir.join(format!("{name}.{extension}"))
    }
}

/// The checkpoints of the run in `run_dir`, with the steps done, in their order.
///
/// # Errors
/// [`Error::Io`] naming the directory.
pub fn all(run_dir: &Path) -> Result<Vec<(usize, PathBuf)>> {
    let dir = Store::at(run_dir).dir;
    Ok(steps_in(&dir)?.into_iter().map(|step| (step, dir.join(directory_name(step)))).collect())
}

/// Reads the checkpoint in the directory `path` after verifying every byte; changes nothing.
///
/// # Errors
/// [`Error::Checkpoint`] with the reason, and with the name of another intact checkpoint if there is one.
pub fn read(path: &Path) -> Result<Loaded> {
    let named = |loaded| Loaded { path: path.into(), ..loaded };
    follow(path, verify).map(named).map_err(|error| {
        let remedy = match intact_neighbour(path) {
            Some(good) => format!("use '{}' instead, which is intact", good.display()),
            None => "give the directory of a checkpoint, such as 'runs/0001/checkpoints/latest'".into(),
        };
        Error::Checkpoint(format!("{error}; {remedy}"))
    })
}

/// Reads the directory that `path` is or points to. A run that is still training may meanwhile move its pointer and delete
/// the directory, or put another one in its place; then what is there next is read.
fn follow(path: &Path, read: fn(&Path) -> Result<Loaded>) -> Result<Loaded> {
    let current = || {
        let target = pointed(path);
        let manifest = file::read(&target.join(MANIFEST), TEXT).ok();
        (target, manifest)
    };
    for _ in 1..MOVES {
        let found = current();
        let done = read(&found.0);
        // Asked before `current`: the old directory is removed only when the new one is in place.
        let is_between = found.1.is_none() && replaced(&found.0).exists();
        if done.is_ok() || (!is_between && current() == found) {
            return done;
        }
        std::thread::sleep(PAUSE);
    }
    // Who replaces it may have been stopped, or killed; then what was there before is whole.
    let target = current().0;
    read(&target).or_else(|error| read(&replaced(&target)).map_err(|_| error))
}

/// The directory that `path` is or points to, whether or not it is there.
fn pointed(path: &Path) -> PathBuf {
    fs::read_link(path).map_or_else(|_| path.into(), |target| path.with_file_name(target))
}

/// Where the checkpoint in the directory `path` is while another one is put in its place.
fn replaced(path: &Path) -> PathBuf {
    path.with_extension(REPLACED)
}

/// Whether `path` is or points to a directory, or to a checkpoint that another one is just replacing.
pub fn is_there(path: &Path) -> bool {
    let target = pointed(path);
    let is_step = target.file_name().is_some_and(|name| step_of(&name.to_string_lossy()).is_some());
    // The last question is for one whose replacement has come in between.
    path.is_dir() || (is_step && replaced(&target).is_dir()) || path.is_dir()
}

/// The directory that holds the checkpoint at `path`, a link or a directory.
pub(super) fn parent(path: &Path) -> Option<PathBuf> {
    let whole = path.canonicalize().ok().filter(|path| path.is_dir());
    let whole = whole.or_else(|| Some(pointed(path)).filter(|target| is_there(target)))?;
    whole.parent()?.canonicalize().ok()
}

fn verify(path: &Path) -> Result<Loaded> {
    let manifest = Manifest::read(path)?;
    let files = manifest.files.iter().map(|(name, entry)| Ok((name.clone(), entry.read(&path.join(name))?)));
    Ok(Loaded { path: path.into(), step: manifest.step, epoch: manifest.epoch, files: files.collect::<Result<_>>()? })
}

/// The newest intact checkpoint in the parent directory of `path`.
fn intact_neighbour(path: &Path) -> Option<PathBuf> {
    let dir = path.parent()?;
    let steps = steps_in(dir).ok()?;
    steps.iter().rev().map(|step| dir.join(directory_name(*step))).find(|other| verify(other).is_ok())
}

/// Writes the files, then their manifest, then flushes the directory itself.
fn write_directory(dir: &Path, snapshot: &Snapshot) -> Result<()> {
    snapshot.check_names()?;
    fs::create_dir(dir).map_err(Error::io("create", dir))?;
    let create = |name: &str, content: &Content| {
        let path = dir.join(name);
        content.create(&path).map_err(Error::io("write", &path))
    };
    let entries = snapshot.files.iter().map(|(name, content)| Ok((name.clone(), create(name, content)?)));
    let manifest = Manifest::of(snapshot, entries.collect::<Result<_>>()?).to_json();
    create(MANIFEST, &manifest.into_bytes().into())?;
    sync_dir(dir).map_err(Error::io("write", dir))
}

fn directory_name(step: usize) -> String {
    format!("step-{step:08}")
}

pub(super) fn step_of(name: &str) -> Option<usize> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (directory_name(step) == name).then_some(step)
}

/// The steps that have a directory in `dir`, ascending.
fn steps_in(dir: &Path) -> Result<Vec<usize>> {
    let mut steps: Vec<_> = names_in(dir)?.iter().filter_map(|name| step_of(name)).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// Whether `dir` holds a checkpoint, or one that was being replaced.
pub(super) fn has_saved(dir: &Path) -> bool {
    let is_saved = |name: &String| step_of(name.strip_suffix(".old").unwrap_or(name)).is_some();
    names_in(dir).is_ok_and(|names| names.iter().any(is_saved))
}

/// The names in a directory, except those that are not UTF-8, which the store never writes.
fn names_in(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let entries = entries.map_err(Error::io("read", dir))?;
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}
