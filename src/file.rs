//! Files of others, which may be no files, or far larger than anything useful.
//!
//! Every reader of such a file says how large it can usefully be; a larger one is refused before a byte is read. What is
//! large even so is mapped, so that only the parts that are looked at take memory.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use memmap2::{Mmap, MmapOptions};

/// Bytes of a MiB.
pub(crate) const MIB: u64 = 1 << 20;
/// Bytes of a GiB.
pub(crate) const GIB: u64 = 1 << 30;

/// No text that people write or that describes a checkpoint has more bytes: configurations, manifests, states.
pub(crate) const TEXT: u64 = MIB;

/// The bytes of a file of at most `limit` bytes.
///
/// # Errors
/// The system's, or a reason that completes "cannot read 'x': ".
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // A file may grow while it is read.
    open(path, limit)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// As [`read`], of which only what is looked at comes into memory.
///
/// # Errors
/// As of [`read`].
pub(crate) fn map(path: &Path, limit: u64) -> io::Result<Mmap> {
    let file = open(path, limit)?;
    // SAFETY: the bytes are only read, and as bytes. Who cuts the file short meanwhile ends this process by a signal,
    // who changes it gets what is there at that moment; both are as with any program that maps files.
    unsafe { MmapOptions::new().map_copy_read_only(&file) }
}

/// Text of at most `limit` bytes, from a file or from a pipe such as `<(command)`.
///
/// # Errors
/// The system's, and [`ErrorKind::FileTooLarge`], [`ErrorKind::InvalidData`] for what is not UTF-8.
pub(crate) fn text(path: &Path, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(limit));
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

fn open(path: &Path, limit: u64) -> io::Result<File> {
    // Asked before it is opened: opening a pipe would wait for its writer.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    if metadata.len() > limit { Err(too_large(limit)) } else { File::open(path) }
}

fn size(bytes: u64) -> String {
    if bytes < GIB { format!("{} MiB", bytes / MIB) } else { format!("{} GiB", bytes / GIB) }
}

fn too_large(limit: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {}", size(limit)))
}
