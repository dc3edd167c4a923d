//! Files with secrets: written by `train secret`, and one per user for jobs on one machine without a given secret.
//!
//! Both hold 256 bits of the system's randomness, belong to the user who ran Kiln, have mode 600, appear atomically,
//! and never replace a file. The user's own file is in `$XDG_STATE_HOME/kiln`, or `~/.local/state/kiln`: other users of
//! the machine cannot read it, so they can neither join a job nor list or drain its members. It does not protect
//! against readers of the user's files: root, backups, a file server.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kiln_system::{Error, Result, shown};

use super::Secret;

/// Writes a new secret to `path`.
///
/// # Errors
/// A usage error if `path` exists, [`Error::Io`] if it cannot be written.
pub fn create(path: &Path) -> Result<()> {
    draw(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Error::usage(format!(
            "'{}' already exists, and a secret in use must not change; give another name, or remove it first",
            shown(path)
        )),
        _ => Error::io("write", path)(error),
    })
}

/// The secret of this user on this machine; the first process that needs it creates it.
///
/// # Errors
/// A usage error if the user has no private directory for it.
pub fn of_user() -> Result<Secret> {
    let folder = folder().ok_or_else(|| refusal("HOME", "this user has no home directory"))?;
    let refuse = |path: &Path| {
        let path = path.to_path_buf();
        move |error: io::Error| refusal(&shown(&path), &error.to_string())
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(refuse(&folder))?;
    let metadata = folder.symlink_metadata().map_err(refuse(&folder))?;
    if !metadata.is_dir() || !is_own(metadata.uid()) || metadata.mode() & 0o022 != 0 {
        let why = "it must be a directory that only this user may change (mode 700)";
        return Err(refusal(&shown(&folder), why));
    }
    let path = folder.join("secret");
    match draw(&path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(refuse(&path)(error)),
        _ => {}
    }
    let file = open(&path).map_err(refuse(&path))?;
    if !is_own(file.metadata().map_err(refuse(&path))?.uid()) {
        return Err(refusal(&shown(&path), "it belongs to another user"));
    }
    Secret::from_open_file(file, &path, |why| refusal(&shown(&path), &why))
}

fn refusal(place: &str, why: &str) -> Error {
    Error::usage(format!(
        "cannot keep a secret for the processes of this user in '{place}': {why}; fix that, or give --job-secret-file \
         to all of them, or run without a secret with --insecure"
    ))
}

fn folder() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = || std::env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".local/state"));
    Some(named.or_else(usual)?.join("kiln"))
}

fn is_own(user: u32) -> bool {
    // SAFETY: only asks the system.
    user == unsafe { libc::geteuid() }
}

/// Opens without following a symbolic link, which may lead to a foreign file, and without blocking on a pipe.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Writes a new secret next to `path`, readable only by the user from the start, and renames it unless `path` exists.
fn draw(path: &Path) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(ErrorKind::AlreadyExists.into());
    }
    let beside = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(beside)?;
    writeln!(file, "{}", Secret::random().to_text())?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    Ok(())
}
