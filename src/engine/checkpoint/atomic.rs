//! Atomic writes: a file or directory appears whole, or not at all.
//!
//! POSIX only guarantees that `rename` replaces its target at once, not that written data is on the disk. So everything
//! is written beside its target under a temporary name, flushed (fsync), renamed, and the directory flushed as well. A
//! reader sees the old or the new content; a crash leaves at most a temporary name that the next write replaces.

use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use kiln_system::{Error, Result, shown};

/// Creates or replaces the file at `path`, and creates its directories; no reader ever sees a part of it.
///
/// # Errors
/// [`Error::Io`] naming `path`, which is then unchanged.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    create_atomic(path, |file| file.write_all(bytes))
}

/// As [`write_atomic`], with what `write` writes.
pub fn create_atomic(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let parent = parent(path);
    check_replaceable(path)?;
    fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    let fresh = temporary(path)?;
    remove(&fresh)?;
    let create = || {
        let mut file = File::create_new(&fresh)?;
        write(&mut file)?;
        file.sync_all()
    };
    create()
        .and_then(|()| fs::rename(&fresh, path))
        .and_then(|()| sync_dir(parent))
        .inspect_err(|_| drop(fs::remove_file(&fresh)))
        .map_err(Error::io("write", path))
}

/// Checks that [`write_atomic`] can write `path`, a file that the user named, without changing it.
///
/// Its directory must exist, since a missing one is probably a typing error. Only directories that the user names, as
/// in `--output-dir`, are created.
///
/// # Errors
/// [`Error::Io`] naming the path.
pub fn check_writable(path: &Path) -> Result<()> {
    let parent = parent(path);
    if !parent.is_dir() {
        let reason = format!("there is no directory '{}'", shown(parent));
        return Err(Error::io("write", path)(io::Error::new(io::ErrorKind::NotFound, reason)));
    }
    let fresh = temporary(path)?;
    remove(&fresh)?;
    check_replaceable(path)?;
    File::create_new(&fresh).map_err(Error::io("write", path))?;
    remove(&fresh)
}

/// Refuses to put a file in the place of a directory, a device or a pipe.
fn check_replaceable(path: &Path) -> Result<()> {
    let reason = match fs::metadata(path) {
        Ok(found) if found.is_dir() => io::ErrorKind::IsADirectory.into(),
        Ok(found) if !found.is_file() => io::Error::other("it is a device or a pipe, which would be replaced"),
        _ => return Ok(()),
    };
    Err(Error::io("write", path)(reason))
}

/// Points the symlink `link` to `target`, a path relative to the directory of `link`, in one step, even if several
/// processes do so at the same time.
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

/// Flushes the entries of a directory, without which a rename may not be on the disk.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes a file, a symlink or a whole directory, if it exists.
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

/// `a/b` becomes `a/.b.tmp`: hidden, and on the same file system.
fn temporary(path: &Path) -> Result<PathBuf> {
    let no_file = || io::Error::new(io::ErrorKind::InvalidInput, "it does not name a file");
    let name = path.file_name().ok_or_else(no_file).map_err(Error::io("write", path))?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".tmp");
    Ok(path.with_file_name(hidden))
}

/// The parent directory of a path; the current directory for a bare file name.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
