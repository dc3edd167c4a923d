//! An append-only text file of lines that survives kills and resumptions.
//!
//! Each line is one write, so that readers see it at once and a kill can damage only the last line.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kiln_engine::checkpoint::write_atomic;
use kiln_system::{Error, Result};

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Atomically replaces the file's content by `keep` of it, and opens the file.
    ///
    /// `keep` gets complete lines only: a last line without a line break was cut off by a kill. A missing file counts
    /// as empty.
    pub(crate) fn open(path: &Path, keep: impl FnOnce(&[u8]) -> Vec<u8>) -> Result<Self> {
        let mut text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(Error::io("read", path))?,
        };
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        text.truncate(whole);
        write_atomic(path, &keep(&text))?;
        let file = File::options().append(true).open(path).map_err(Error::io("open", path))?;
        Ok(Self { path: path.into(), file })
    }

    /// Appends text that ends with a line break.
    pub(crate) fn append(&mut self, lines: &[u8]) -> Result<()> {
        self.file.write_all(lines).map_err(Error::io("write", &self.path))
    }

    /// Whether nothing has been written yet.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        Ok(self.file.metadata().map_err(Error::io("read", &self.path))?.len() == 0)
    }
}
