//! The content of a file of a checkpoint: written and summed in one pass, since that of a large model is never held as
//! a whole in addition to its tensors.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use kiln_system::file;
use kiln_system::{Error, Result, shown};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::MANIFEST;
use crate::state::{Metadata, StateDict, to_safetensors, write_safetensors};

/// Bytes that are summed and written at once: few enough for the processor's cache.
const CHUNK: usize = 1 << 18;

#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Bytes(Vec<u8>),
    Tensors(StateDict, Metadata),
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl Content {
    pub fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => to.write_all(bytes),
            Self::Tensors(tensors, metadata) => write_safetensors(tensors, metadata, to),
        }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Tensors(tensors, metadata) => to_safetensors(&tensors, &metadata),
        }
    }

    /// Creates a file that must not exist, and flushes it to the disk.
    pub(super) fn create(&self, path: &Path) -> io::Result<Entry> {
        let mut summed = Summed { file: File::create_new(path)?, hash: Sha256::new(), size: 0 };
        self.write(&mut summed)?;
        summed.file.sync_all()?;
        Ok(Entry { size: summed.size, sha256: format!("{:x}", summed.hash.finalize()) })
    }
}

/// The size and the sum of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Length in bytes.
    pub size: u64,
    pub sha256: String,
}

impl Entry {
    pub fn of(bytes: &[u8]) -> Self {
        Self { size: bytes.len() as u64, sha256: format!("{:x}", Sha256::digest(bytes)) }
    }

    /// Reads the file at `path` if its size and sum are those of the entry.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::Checkpoint`] with the reason if it differs.
    pub fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let damaged = |reason| Error::Checkpoint(format!("'{}' is damaged: {reason}", shown(path)));
        // Checked before reading, so that a huge file does not fill the memory.
        let size = fs::metadata(path).map_err(Error::io("read", path))?.len();
        if size != self.size {
            return Err(damaged(format!("it has {size} bytes, {MANIFEST} says {}", self.size)));
        }
        let bytes = file::map(path, self.size).map_err(Error::io("read", path))?;
        if Self::of(&bytes) != *self {
            return Err(damaged(format!("its SHA-256 is not the one in {MANIFEST}")));
        }
        Ok(bytes.to_vec())
    }
}

/// A file, and the size and the sum of what was written.
struct Summed {
    file: File,
    hash: Sha256,
    size: u64,
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(&bytes[..bytes.len().min(CHUNK)])?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
