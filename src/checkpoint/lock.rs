//! One run at a time in a directory.
//!
//! Whoever writes into a run's directory holds a lock on the file `.lock` in it. The system releases the lock when the
//! process ends, however it ends, so a dead process leaves nothing behind. The lock is `flock`, which Linux also takes on
//! NFS, where the server then keeps it. The text of the file names the holder to those who are refused.
//!
//! A run of fixed processes is locked by its first process. The processes of an elastic run take over from each other,
//! so each that sees the directory holds a share.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::Path;

use crate::error::{Error, Result};

const FILE: &str = ".lock";

/// The right to write into a directory, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
    is_shared: bool,
}

impl Lock {
    /// Locks `dir`, which must exist. `warn` hears that the file system has no locks, which is no reason to refuse.
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
                dir.display()
            )),
        }
        // A message that names nobody is better than no run.
        let _ = file.set_len(0).and_then(|()| file.write_all(holder().as_bytes()));
        Ok(Self { file, is_shared: false })
    }

    /// Gives the other processes of this run a share.
    ///
    /// # Errors
    /// [`Error::Busy`] naming another run that has the lock now: nobody holds it for an instant.
    pub fn share(mut self, dir: &Path) -> Result<Self> {
        self.is_shared = true;
        // Where the file system has no locks, `acquire` has warned.
        let _ = self.file.unlock();
        take_share(&self.file, dir)?;
        Ok(self)
    }

    /// A share in the lock of a run that this process joins.
    ///
    /// # Errors
    /// [`Error::Busy`] naming another run that has the directory, which on a machine of its own is another directory of
    /// the same name; [`Error::Io`] if it cannot be written.
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
    let options = File::options().read(true).write(true).create(true).truncate(false).open(dir.join(FILE));
    options.map_err(Error::io("write to", dir))
}

fn take_share(file: &File, dir: &Path) -> Result<()> {
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(busy(dir)),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

fn holder() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("process {} on host '{host}'", std::process::id())
}

fn busy(dir: &Path) -> Error {
    let holder = std::fs::read_to_string(dir.join(FILE)).unwrap_or_default();
    // The file is written after it is locked, and anybody may have written something else.
    let is_name = |text: &&str| text.starts_with("process ") && text.len() < 200 && !text.contains(char::is_control);
    let holder = Some(holder.as_str()).filter(is_name).unwrap_or("another process");
    Error::Busy(format!(
        "'{}' is in use by {holder}; wait for its end or stop it, or give another --output-dir",
        dir.display()
    ))
}
