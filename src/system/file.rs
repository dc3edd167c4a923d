//! Reads files of unknown origin, which may not be regular files, or may be much too large, and opens those of known
//! names for writing.
//!
//! Every reader sets a size limit; a larger file is refused before a byte is read. Large files are mapped, so that only
//! the parts that are used take memory.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapOptions};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;

/// The limit of text files: configurations, manifests, states.
pub const TEXT: u64 = MIB;

/// The bytes of a file of at most `limit` bytes.
///
/// # Errors
/// That of the system, or a reason that completes "cannot read 'x': ".
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // A file may grow while it is read.
    let (file, length) = open(path, limit)?;
    let mut bytes = Vec::with_capacity(length as usize + 1);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// As [`read`], but mapped into memory.
///
/// # Errors
/// Those of [`read`].
pub fn map(path: &Path, limit: u64) -> io::Result<Mmap> {
    let (file, _) = open(path, limit)?;
    // SAFETY: the bytes are only read, and as bytes. If another program truncates the file, a signal ends this
    // process; if it changes the file, the new bytes are read. Both hold for every program that maps files.
    unsafe { MmapOptions::new().map_copy_read_only(&file) }
}

/// Text of at most `limit` bytes, from a file or from a pipe such as `<(command)`.
///
/// # Errors
/// That of the system, [`ErrorKind::FileTooLarge`], or [`ErrorKind::InvalidData`] for text that is not UTF-8.
pub fn text(path: &Path, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(limit));
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Opens or creates a file for reading and writing, with the content that it has. In a directory that others may write,
/// its name may be a symlink to anywhere, which is refused.
///
/// # Errors
/// That of the system, or a reason that completes "cannot open 'x': ".
pub fn open_to_write(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags.bits() as i32);
    let file = options.open(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => io::Error::other("it is a symlink, which may lead anywhere; remove it"),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file; remove it")) }
}

/// The user's directory for what can be made again: `$XDG_CACHE_HOME`, else `~/.cache`.
pub fn cache() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|given| !given.is_empty()).map(PathBuf::from);
    given.or_else(|| Some(std::env::home_dir()?.join(".cache")))
}

pub fn open(path: &Path, limit: u64) -> io::Result<(File, u64)> {
    // Before opening, since opening a pipe would wait for its writer.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let length = metadata.len();
    if length > limit { Err(too_large(limit)) } else { Ok((File::open(path)?, length)) }
}

fn size(bytes: u64) -> String {
    match bytes {
        ..MIB => format!("{bytes} bytes"),
        MIB..GIB => format!("{} MiB", bytes / MIB),
        GIB.. => format!("{} GiB", bytes / GIB),
    }
}

fn too_large(limit: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {}", size(limit)))
}
