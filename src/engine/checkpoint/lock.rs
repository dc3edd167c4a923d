//! The lock on a run's directory: one run at a time.
//!
//! A process that writes into a run's directory holds a lock on the file `.lock` in it. The system releases the lock
//! when the process ends, even by a kill. The lock is `flock`, which also works on NFS under Linux, where the server
//! keeps it. The text of the file names the holder, for the errors of other processes.
//!
//! A run of fixed membership is locked by its first process. The processes of an elastic run take over from each other,
//! so each of them holds a shared lock.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::Path;

use kiln_system::file::{self, TEXT};
use kiln_system::{Error, Result, shown};

const FILE: &str = ".lock";

/// The right to write into a directory, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
    is_shared: bool,
}

impl Lock {
    /// Locks `dir`, which must exist. A file system without locks only leads to a warning.
    ///
    /// # Errors
    /// [`Error::Busy`] naming the holder, [`Error::Io`] if the directory cannot be written.
    pub fn acquire(dir: &Path, warn: &mut dyn FnMut(String)) -> Result<Self> {
        let mut file = open(dir)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(busy(dir)),
            Err(TryLockError::Error(reason)) => warn(format!(
                "the file system of '{}' has no locks ({reason}); make sure that no other run writes there",
                shown(dir)
            )),
        }
        let machine = rustix::system::uname();
        let holder = format!("process {} on host '{}'", std::process::id(), machine.nodename().to_string_lossy());
        // Without the name of the holder the lock still works.
        let _ = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
        Ok(Self { file, is_shared: false })
    }

    /// Checks that no other run has locked `dir`; changes nothing, and the answer may soon be out of date.
    ///
    /// # Errors
    /// [`Error::Busy`] naming the holder.
    pub fn check(dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        // What is not a file is refused with its remedy when the directory is locked.
        let present = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        match present.then(|| File::open(&path)) {
            Some(Ok(file)) if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) => Err(busy(dir)),
            _ => Ok(()),
        }
    }

    /// Turns the lock into a shared one, for the other processes of this run.
    ///
    /// # Errors
    /// [`Error::Busy`] naming another run that took the lock in between, since the change is not atomic.
    pub fn share(mut self, dir: &Path) -> Result<Self> {
        self.is_shared = true;
        // If the file system has no locks, `acquire` has warned.
        let _ = self.file.unlock();
        take_share(&self.file, dir)?;
        Ok(self)
    }

    /// Joins the shared lock of a run.
    ///
    /// # Errors
    /// [`Error::Busy`] naming another run that has locked the directory of this name on this machine; [`Error::Io`] if
    /// it cannot be written.
    pub fn join(dir: &Path) -> Result<Self> {
        let file = open(dir)?;
        take_share(&file, dir)?;
        Ok(Self { file, is_shared: true })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.is_shared {
            let _ = self.file.set_len(0);
        }
    }
}

fn open(dir: &Path) -> Result<File> {
    let path = dir.join(FILE);
    file::open_to_write(&path).map_err(Error::io("lock", path))
}

fn take_share(file: &File, dir: &Path) -> Result<()> {
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(busy(dir)),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

fn busy(dir: &Path) -> Error {
    let holder = file::read(&dir.join(FILE), TEXT).unwrap_or_default();
    let holder = String::from_utf8_lossy(&holder);
    // The file is written after it is locked, and may hold any text.
    let is_name = |text: &&str| text.starts_with("process ") && text.len() < 200 && !text.contains(char::is_control);
    let holder = Some(&*holder).filter(is_name).unwrap_or("another process");
    Error::Busy(format!(
        "'{}' is in use by {holder}; wait for its end or stop it, or give another --output-dir",
        shown(dir)
    ))
}
