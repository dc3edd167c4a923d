//! The directory of a run's checkpoints: `checkpoints/step-00000042/`, and the pointers `latest` and `best`.
//!
//! The store does not interpret its files. The order of its operations makes a kill harmless, as explained in
//! `checkpoint/mod.rs`. [`retain`] decides which checkpoints are kept, [`Manifest`] whether one is intact.

use std::cmp::{Ordering, Reverse};
use std::fs;
use std::path::{Path, PathBuf};

use kiln_system::{Error, Result, shown};

use super::MANIFEST;
use super::atomic::{point, remove, sync_dir, unique};
use super::content::Content;
use super::manifest::{Manifest, Snapshot};
use super::reading::{
    Loaded, REPLACED, directory_name, follow, is_there, names_in, replaced, step_of, steps_in, steps_saved, verify,
};
use super::retention::{Keep, retain};

/// How often a process tries to save a checkpoint while others may save the same.
const ATTEMPTS: usize = 4;

/// How the temporary names of checkpoints and pointers begin.
const TEMPORARY: [&str; 3] = ["step-", ".best.", ".latest."];

/// Which checkpoint of a run is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Best,
    Latest,
}

impl Which {
    /// The name of its pointer, and its word for `--which`.
    pub fn name(self) -> &'static str {
        if self == Self::Best { "best" } else { "latest" }
    }
}

/// The checkpoints of one run. Only one store of a directory may be open; [`Store::at`] and [`read`](super::read) only
/// read.
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
                return Err(Error::Checkpoint(format!("'{}' {reason}", shown(&path))));
            }
        }
        store.recover()?;
        // Lost in a copy, without it the best checkpoint would be deleted.
        if store.pointed("best").is_none()
            && let Some(best) = store.find(Which::Best)
        {
            point(&store.dir.join("best"), &best.file_name().unwrap_or_default().to_string_lossy())?;
        }
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
    /// kept until this run has passed them. Nothing is saved where another store has saved this step or a later one
    /// since: that of a process that took over while this one was stopped or waited for the disk.
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

    /// Saves a checkpoint into `<run_dir>/checkpoints` while other processes may have the store open and may
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
    /// [`Error::Checkpoint`] if none is intact.
    pub fn load(&self, which: Which, warn: &mut dyn FnMut(String)) -> Result<Loaded> {
        let pointer = which.name();
        if let Ok(loaded) = follow(&self.dir.join(pointer), verify) {
            return Ok(loaded);
        }
        let steps = self.candidates(which)?;
        if !steps.is_empty() && self.pointed(pointer).is_none() {
            let link = self.dir.join(pointer);
            warn(format!("'{}' points to no checkpoint; looking for the intact one that it stood for", shown(&link)));
        }
        for step in steps {
            let path = self.dir.join(directory_name(step));
            match verify(&path).or_else(|error| verify(&replaced(&path)).map_err(|_| error)) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => warn(format!("{error}; looking for another checkpoint to use instead")),
            }
        }
        Err(Error::Checkpoint(format!(
            "'{}' holds no intact checkpoint; give another one with --resume PATH, or start anew without --resume",
            shown(&self.dir)
        )))
    }

    /// Where the newest or the best checkpoint is: its pointer or, where a copy of the run has lost that, what it would
    /// point to. `None` if there is none, or if no accuracy says which one is the best.
    pub fn find(&self, which: Which) -> Option<PathBuf> {
        let link = self.dir.join(which.name());
        if is_there(&link) {
            return Some(link);
        }
        let is_known = |step: &usize| which != Which::Best || self.accuracy(*step).is_some();
        let step = self.candidates(which).ok()?.into_iter().next().filter(is_known)?;
        Some(self.dir.join(directory_name(step)))
    }

    /// The steps to try for a pointer, in this order: its own, earlier ones, later ones, newest first. Without its own,
    /// for the best one those with the highest accuracy come first.
    fn candidates(&self, which: Which) -> Result<Vec<usize>> {
        let mut steps = steps_saved(&self.dir)?;
        let target = self.pointed(which.name());
        steps.sort_by_key(|step| (Some(*step) != target, target.is_some_and(|t| *step > t), Reverse(*step)));
        if which == Which::Best && target.is_none() {
            // Of equals the first one became the best.
            let ranked = |step: &usize| self.accuracy(*step).map(|accuracy| (accuracy, Reverse(*step)));
            steps.sort_by(|a, b| ranked(b).partial_cmp(&ranked(a)).unwrap_or(Ordering::Equal));
        }
        Ok(steps)
    }

    fn accuracy(&self, step: usize) -> Option<f64> {
        Manifest::read(&self.dir.join(directory_name(step))).ok()?.accuracy()
    }

    /// The step that a pointer names, if its checkpoint exists.
    fn pointed(&self, pointer: &str) -> Option<usize> {
        let steps = steps_saved(&self.dir).unwrap_or_default();
        self.target(pointer).filter(|step| steps.contains(step))
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
            _ => self.accuracy(*step),
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
