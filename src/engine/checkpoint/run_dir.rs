//! Claims the directory of a run: a new one, or that of the run it continues.
//!
//! `runs/0001`, `runs/0002` and so on are claimed by creating them, which succeeds in only one process. `runs/last` is
//! a symlink to the newest one with a checkpoint, for users and for `--resume latest`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kiln_system::{Error, Result, shown};
use rustix::fs::Access;

use super::atomic::point;
use super::lock::Lock;
use super::reading::{self, has_saved};

/// Claims the next free numbered directory in `base`.
///
/// # Errors
/// [`Error::Io`] naming the path that cannot be created.
pub fn next(base: &Path) -> Result<PathBuf> {
    fs::create_dir_all(base).map_err(Error::io("create", base))?;
    for number in unused(base)..=u32::MAX {
        let path = base.join(format!("{number:04}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("create", &path)(error)),
        }
    }
    Err(Error::usage(format!("'{}' has no free number left; give another --output-dir", shown(base))))
}

/// The directory that [`next`] would claim now.
pub fn upcoming(base: &Path) -> PathBuf {
    base.join(format!("{:04}", unused(base)))
}

/// The first number after those of the directories in `base`.
fn unused(base: &Path) -> u32 {
    numbered(base).last().and_then(|newest| number(newest)).unwrap_or(0).saturating_add(1)
}

/// The number in the name of a run's directory.
fn number(run: &Path) -> Option<u32> {
    run.file_name()?.to_str()?.parse().ok()
}

/// The numbered directories in `base`, ascending.
pub fn numbered(base: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<_> = paths.filter(|path| number(path).is_some()).collect();
    paths.sort_by_key(|path| number(path));
    paths
}

/// Points `base/last` to `run`, a numbered directory in `base` with a checkpoint, unless it points to a later one.
pub fn announce(base: &Path, run: &Path) {
    let Some(own) = number(run).filter(|_| run.parent() == Some(base)) else { return };
    if linked(base).and_then(|last| number(&last)).is_none_or(|last| last < own) {
        // Errors are ignored, for example if two runs save at the same time: the link is only a convenience.
        drop(point(&base.join("last"), &run.file_name().unwrap_or_default().to_string_lossy()));
    }
}

/// The directory that `base/last` points to; without that link, as in a copy of `base`, the newest with a checkpoint.
pub fn last(base: &Path) -> Option<PathBuf> {
    linked(base).or_else(|| numbered(base).into_iter().rfind(|run| is_begun(run)))
}

/// The directory that `base/last` points to, if it exists.
fn linked(base: &Path) -> Option<PathBuf> {
    let path = base.join(fs::read_link(base.join("last")).ok()?);
    path.is_dir().then_some(path)
}

/// The newest numbered directory in `base`, if it is later than [`last`] and its run has no checkpoint.
pub fn unsaved(base: &Path) -> Option<PathBuf> {
    let newest = numbered(base).pop().filter(|newest| !is_begun(newest))?;
    let saved = last(base).and_then(|last| number(&last));
    (number(&newest) > saved).then_some(newest)
}

/// The directory of the run with the checkpoint at `path`, a link or a directory.
pub fn of(path: &Path) -> Option<PathBuf> {
    let checkpoints = reading::parent(path).filter(|parent| parent.ends_with("checkpoints"))?;
    checkpoints.parent().map(Path::to_path_buf)
}

/// Whether `dir` has a checkpoint to continue from. A run killed during its first save may have left one without a
/// pointer to it.
pub fn is_begun(dir: &Path) -> bool {
    has_saved(&dir.join("checkpoints"))
}

/// Claims a directory: creates it, locks it, and refuses one with the checkpoints of another run unless `resuming`. A
/// file system without locks leads to a warning.
///
/// # Errors
/// [`Error::Busy`] naming the writing process, [`Error::Usage`] with the remedies, or [`Error::Io`] naming the path.
pub fn claim(dir: &Path, resuming: bool, warn: &mut dyn FnMut(String)) -> Result<Lock> {
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let lock = Lock::acquire(dir, warn)?;
    refuse_begun(dir, resuming)?;
    Ok(lock)
}

/// Checks that [`claim`] would succeed now; changes nothing.
pub fn check(dir: &Path, resuming: bool) -> Result<()> {
    let present =
        dir.ancestors().find(|place| place.exists() && !place.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !present.is_dir() {
        return Err(Error::io("create", dir)(io::ErrorKind::NotADirectory.into()));
    }
    rustix::fs::access(present, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|reason| Error::io("write into", present)(reason.into()))?;
    Lock::check(dir)?;
    refuse_begun(dir, resuming)
}

fn refuse_begun(dir: &Path, resuming: bool) -> Result<()> {
    if resuming || !is_begun(dir) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "output directory '{}' already holds checkpoints; a new run needs one of its own: continue that run with \
         --resume latest, or give another --output-dir",
        shown(dir)
    )))
}
