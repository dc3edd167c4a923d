//! Who owns a directory: a run gets a new one, or says that it continues the one it names.
//!
//! `runs/0001`, `runs/0002` and so on are claimed by creating them, which only one process can do. `runs/last` is a
//! symlink to the newest, for people and for `--resume latest`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::atomic::{point, remove};
use super::store::steps_in;
use crate::error::{Error, Result};

/// Claims the next free numbered directory in `base` and points `base/last` to it.
///
/// # Errors
/// [`Error::Io`] naming the path that cannot be created.
pub fn next(base: &Path) -> Result<PathBuf> {
    fs::create_dir_all(base).map_err(Error::io("create", base))?;
    let entries = fs::read_dir(base).map_err(Error::io("read", base))?;
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let first = numbers.max().unwrap_or(0).saturating_add(1);
    for number in first..=u32::MAX {
        let name = format!("{number:04}");
        let path = base.join(&name);
        match fs::create_dir(&path) {
            Ok(()) => {
                // A convenience: a run is not to fail for it, such as when two of them start in the same instant.
                drop(point(&base.join("last"), &name));
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("create", &path)(error)),
        }
    }
    Err(Error::usage(format!("'{}' has no free number left; give another --output-dir", base.display())))
}

/// The directory that `base/last` points to, if it exists.
pub fn last(base: &Path) -> Option<PathBuf> {
    let path = base.join(fs::read_link(base.join("last")).ok()?);
    path.is_dir().then_some(path)
}

/// Whether a run in `dir` left a checkpoint to go on from.
pub fn is_begun(dir: &Path) -> bool {
    dir.join("checkpoints/latest").exists()
}

/// Claims a directory that the user named: creates it, proves that it can be written, and refuses one that holds the
/// checkpoints of another run unless `resuming`.
///
/// # Errors
/// [`Error::Usage`] with the remedies, or [`Error::Io`] naming the path.
pub fn claim(dir: &Path, resuming: bool) -> Result<()> {
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let probe = dir.join(".writable.tmp");
    File::create(&probe).map_err(Error::io("write to", dir))?;
    remove(&probe)?;
    let checkpoints = dir.join("checkpoints");
    if resuming || !checkpoints.is_dir() || steps_in(&checkpoints)?.is_empty() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "output directory '{}' already holds checkpoints; a new run needs one of its own: continue that run with \
         --resume latest, or give another --output-dir",
        dir.display()
    )))
}
