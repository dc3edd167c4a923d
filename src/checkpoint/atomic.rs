//! How anything reaches the disk: whole, or not at all.
//!
//! POSIX promises that `rename` replaces its target at once; nothing else here is promised, least of all that a file
//! which was written is on the disk. So everything is written beside its target under a temporary name, flushed
//! (fsync), renamed, and the directory flushed as well. A reader sees the old or the new content, a crash leaves at
//! most a temporary name that the next write of the same target replaces.

use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Creates or replaces the file at `path`, and the directories above it, so that no reader ever sees a part of it.
///
/// # Errors
/// [`Error::Io`] naming `path`; what was there before is then untouched.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let parent = parent(path);
    fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    let fresh = temporary(path)?;
    remove(&fresh)?;
    write_new(&fresh, bytes)
        .and_then(|()| fs::rename(&fresh, path))
        .and_then(|()| sync_dir(parent))
        .inspect_err(|_| drop(fs::remove_file(&fresh)))
        .map_err(Error::io("write", path))
}

/// Proves that [`write_atomic`] can write `path`, a single file that a person named, and leaves it as it is.
///
/// Its directory must exist: one that does not is a slip of the finger. Only directories that are named themselves, as
/// in `--output-dir`, are made.
///
/// # Errors
/// [`Error::Io`] naming the path that stands in the way.
pub fn check_writable(path: &Path) -> Result<()> {
    let parent = parent(path);
    if !parent.is_dir() {
        let reason = format!("there is no directory '{}'", parent.display());
        return Err(Error::io("write", path)(io::Error::new(io::ErrorKind::NotFound, reason)));
    }
    let fresh = temporary(path)?;
    remove(&fresh)?;
    if path.is_dir() {
        return Err(Error::io("write", path)(io::ErrorKind::IsADirectory.into()));
    }
    File::create_new(&fresh).map_err(Error::io("write", path))?;
    remove(&fresh)
}

/// Points the symlink `link` to `target`, a path relative to the directory of `link`, in one step. Several processes
/// may do so at the same time.
pub(super) fn point(link: &Path, target: &str) -> Result<()> {
    let mut fresh = OsString::from(".");
    fresh.push(link.file_name().unwrap_or_default());
    fresh.push(format!(".{}.tmp", unique()));
    let fresh = link.with_file_name(fresh);
    symlink(target, &fresh)
        .and_then(|()| fs::rename(&fresh, link))
        .and_then(|()| sync_dir(parent(link)))
        .inspect_err(|_| drop(fs::remove_file(&fresh)))
        .map_err(Error::io("replace", link))
}

/// Creates a file that must not exist, and flushes it to the disk.
pub(super) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Flushes the entries of a directory: a rename is on the disk only after this.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes a file, a symlink or a whole directory; there may be nothing.
pub(super) fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    };
    removed.map_err(Error::io("remove", path))
}

/// A part of a file name that no other process uses.
pub(super) fn unique() -> String {
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// `a/b` becomes `a/.b.tmp`: on the same file system, hidden from a listing.
fn temporary(path: &Path) -> Result<PathBuf> {
    let no_file = || io::Error::new(io::ErrorKind::InvalidInput, "it does not name a file");
    let name = path.file_name().ok_or_else(no_file).map_err(Error::io("write", path))?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".tmp");
    Ok(path.with_file_name(hidden))
}

/// The directory a path lies in; a bare file name lies in the current one.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
