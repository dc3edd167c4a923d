//! The records that were appended to a log since it was last read, so that following a run costs as much as its new
//! lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kiln_system::file::{self, GIB, MIB};

use crate::metrics::Record;

/// The longest line that may be a record: the first one holds all settings.
const LONGEST: u64 = MIB;

/// How far a log has been read.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Kept open, so that no other file can have its number: a resumed run puts another log in its place.
    file: Option<File>,
    read: u64,
    lines: usize,
    damaged: usize,
    /// The first damaged line, from 1.
    first: usize,
    /// Whether the last line is incomplete.
    is_cut: bool,
}

impl Tail {
    /// Opens the log; returns whether it is another one than before, which is read from its first line.
    ///
    /// # Errors
    /// That of the system, or a log of more than 4 GiB.
    pub(crate) fn open(&mut self, path: &Path) -> io::Result<bool> {
        let (file, length) = file::open(path, 4 * GIB)?;
        let number = |file: &File| file.metadata().map(|it| (it.dev(), it.ino())).ok();
        let is_same = |before: &File| number(before) == number(&file) && length >= self.read;
        if self.file.as_ref().is_some_and(is_same) {
            return Ok(false);
        }
        *self = Self { file: Some(file), ..Self::default() };
        Ok(true)
    }

    /// Passes on the records since the last call.
    ///
    /// # Errors
    /// That of the system.
    pub(crate) fn records(&mut self, mut take: impl FnMut(Record)) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut reader = BufReader::new(file);
        reader.seek(SeekFrom::Start(self.read))?;
        let (mut line, mut length) = (Vec::new(), 0);
        loop {
            line.clear();
            length += (&mut reader).take(LONGEST).read_until(b'\n', &mut line)? as u64;
            if line.len() as u64 == LONGEST && !line.ends_with(b"\n") {
                // The rest of a line that is no record.
                continue;
            }
            self.is_cut = length > 0 && !line.ends_with(b"\n");
            if length == 0 || self.is_cut {
                return Ok(());
            }
            match serde_json::from_slice(&line) {
                Ok(record) if length <= LONGEST => take(record),
                _ => {
                    self.damaged += 1;
                    self.first = if self.damaged == 1 { self.lines + 1 } else { self.first };
                }
            }
            self.lines += 1;
            self.read += std::mem::take(&mut length);
        }
    }

    /// What is wrong with the log, one sentence each.
    pub(crate) fn notes(&self) -> Vec<String> {
        let cut = "the last line of metrics.jsonl is incomplete: the run is still writing, or was killed";
        let (damaged, lines, first) = (self.damaged, self.lines + usize::from(self.is_cut), self.first);
        let damaged = (damaged > 0).then(|| {
            format!(
                "{damaged} of {lines} lines of metrics.jsonl are not records and are skipped, the first is line {first}"
            )
        });
        self.is_cut.then(|| cut.into()).into_iter().chain(damaged).collect()
    }
}
