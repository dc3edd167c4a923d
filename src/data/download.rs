//! Fetching a CIFAR archive, so that a file of that name is always the whole, right one.
//!
//! Bytes stream into `<name>.part` beside the target while their MD5 is taken; only a complete file with the published
//! checksum is flushed to disk and renamed. MD5 guards against damage, not against an attacker: the transport is HTTPS,
//! and what is fetched is never executed. Reading the archive is left to the `cifar` source.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use md5::{Digest, Md5};

use super::Progress;
use crate::error::{Error, Result};

/// The data set's home; the environment variable `KILN_CIFAR_MIRROR` names another.
const HOME: &str = "https://www.cs.toronto.edu/~kriz";

/// How long a connection, an answer, or the next bytes may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A published archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Archive {
    /// Its file name, in the folder it is fetched to and on the server.
    pub name: &'static str,
    /// Its MD5, in hexadecimal.
    pub md5: &'static str,
}

/// Where archives are fetched from: `mirror` (the value of `KILN_CIFAR_MIRROR`) unless it is absent or empty.
pub fn base_url(mirror: Option<String>) -> String {
    let url = mirror.filter(|url| !url.is_empty()).unwrap_or_else(|| HOME.to_owned());
    url.trim_end_matches('/').to_owned()
}

/// Makes sure that `dir` holds `archive`, whole and right; fetches it from below `base` where it does not.
///
/// # Errors
/// When the server cannot be reached, ends too early or sends something else, or when `dir` cannot be written. Then
/// whatever `dir` held under the archive's name is as it was.
pub fn ensure(archive: &Archive, dir: &Path, base: &str, progress: &dyn Fn(Progress)) -> Result<PathBuf> {
    let path = dir.join(archive.name);
    if path.is_file() && checksum(&path)? == archive.md5 {
        return Ok(path);
    }
    std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let part = dir.join(format!("{}.part", archive.name));
    // Held, and with it the lock, until the file has its final name or is gone.
    let mut file = open_alone(&part)?;
    let outcome = fetch(archive, &format!("{base}/{}", archive.name), &mut file, &part, progress)
        .and_then(|()| std::fs::rename(&part, &path).map_err(Error::io("replace", &path)));
    match outcome {
        Ok(()) => Ok(path),
        Err(reason) => {
            // The first failure is the one worth telling; a file left behind is overwritten next time.
            let _ = std::fs::remove_file(&part);
            Err(reason)
        }
    }
}

/// Opens the partial file, empty, for this process alone: two writers would make a file that neither has checked.
fn open_alone(part: &Path) -> Result<File> {
    let options = OpenOptions::new().create(true).write(true).truncate(false).to_owned();
    let file = options.open(part).map_err(Error::io("create", part))?;
    match file.try_lock() {
        // Gone from its place: its writer finished between the two calls, and this is the finished file.
        Ok(()) if part.is_file() => file.set_len(0).map_err(Error::io("write", part)).map(|()| file),
        Ok(()) | Err(TryLockError::WouldBlock) => {
            Err(Error::Data(format!("another process is fetching '{}'; wait until it is done", part.display())))
        }
        Err(TryLockError::Error(reason)) => Err(Error::io("lock", part)(reason)),
    }
}

fn fetch(archive: &Archive, url: &str, file: &mut File, part: &Path, progress: &dyn Fn(Progress)) -> Result<()> {
    let failed = |reason: &dyn std::fmt::Display| {
        let dir = part.parent().unwrap_or(part).display();
        Error::Data(format!(
            "cannot fetch '{url}': {reason}; try again, or put '{}' into '{dir}' by hand (--data-dir)",
            archive.name
        ))
    };
    let mut response = agent().get(url).call().map_err(|reason| failed(&reason))?;
    let total = response.body().content_length();
    let mut body = response.body_mut().as_reader();
    let (mut hash, mut done, mut buffer) = (Md5::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = match body.read(&mut buffer).map_err(|reason| failed(&reason))? {
            0 => break,
            count => count,
        };
        hash.update(&buffer[..count]);
        file.write_all(&buffer[..count]).map_err(Error::io("write", part))?;
        done += count as u64;
        progress(Progress::Bytes { what: archive.name.into(), done, total });
    }
    let found = hexadecimal(hash);
    if found != archive.md5 {
        let complaint = format!("{done} bytes arrived with MD5 '{found}', which should be '{}'", archive.md5);
        return Err(failed(&complaint));
    }
    file.sync_all().map_err(Error::io("write", part))
}

fn agent() -> ureq::Agent {
    let patience = Some(PATIENCE);
    let config = ureq::Agent::config_builder().timeout_connect(patience).timeout_recv_response(patience);
    config.timeout_per_read(patience).build().into()
}

fn checksum(path: &Path) -> Result<String> {
    let mut hash = Md5::new();
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    std::io::copy(&mut file, &mut hash).map_err(Error::io("read", path))?;
    Ok(hexadecimal(hash))
}

fn hexadecimal(hash: Md5) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
