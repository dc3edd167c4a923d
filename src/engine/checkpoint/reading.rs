//! Reads checkpoints while a run may be writing: their names, and their files after every byte was verified.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kiln_system::file::{self, TEXT};
use kiln_system::{Error, Result, shown};

use super::MANIFEST;
use super::manifest::Manifest;

/// The extension of a checkpoint in whose place another one is put.
pub(super) const REPLACED: &str = "old";

/// How often a checkpoint is read while the run that owns it moves its pointer or saves its step again.
const MOVES: usize = 100;

/// Between two of these tries.
const PAUSE: Duration = Duration::from_millis(1);

/// A checkpoint whose files are all present and intact.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    pub path: PathBuf,
    pub step: usize,
    /// The epoch, from 0, that the next step belongs to.
    pub epoch: usize,
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Reads the checkpoint in the directory `path` after verifying every byte; changes nothing.
///
/// # Errors
/// [`Error::Checkpoint`] with the reason, and with the name of another intact checkpoint if there is one.
pub fn read(path: &Path) -> Result<Loaded> {
    let named = |loaded| Loaded { path: path.into(), ..loaded };
    follow(path, verify).map(named).map_err(|error| {
        let remedy = match intact_neighbour(path) {
            Some(good) => format!("use '{}' instead, which is intact", shown(&good)),
            None => "give the directory of a checkpoint, such as 'runs/0001/checkpoints/latest'".into(),
        };
        Error::Checkpoint(format!("{error}; {remedy}"))
    })
}

/// Reads the directory that `path` is or points to. A run that is still training may meanwhile move its pointer and
/// delete the directory, or put another one in its place; then what is there next is read.
pub(super) fn follow(path: &Path, read: fn(&Path) -> Result<Loaded>) -> Result<Loaded> {
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
pub(super) fn replaced(path: &Path) -> PathBuf {
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

pub(super) fn verify(path: &Path) -> Result<Loaded> {
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

pub(super) fn directory_name(step: usize) -> String {
    format!("step-{step:08}")
}

pub(super) fn step_of(name: &str) -> Option<usize> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (directory_name(step) == name).then_some(step)
}

/// The steps that have a directory in `dir`, ascending.
pub(super) fn steps_in(dir: &Path) -> Result<Vec<usize>> {
    let mut steps: Vec<_> = names_in(dir)?.iter().filter_map(|name| step_of(name)).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// The steps of the checkpoints in `dir`, with those that were being replaced, ascending.
pub(super) fn steps_saved(dir: &Path) -> Result<Vec<usize>> {
    let is_saved = |name: &String| step_of(name.strip_suffix(".old").unwrap_or(name));
    let mut steps: Vec<_> = names_in(dir)?.iter().filter_map(is_saved).collect();
    steps.sort_unstable();
    steps.dedup();
    Ok(steps)
}

/// Whether `dir` holds a checkpoint, or one that was being replaced.
pub(super) fn has_saved(dir: &Path) -> bool {
    steps_saved(dir).is_ok_and(|steps| !steps.is_empty())
}

/// The names in a directory, except those that are not UTF-8, which the store never writes.
pub(super) fn names_in(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let entries = entries.map_err(Error::io("read", dir))?;
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}
