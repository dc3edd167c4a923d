//! `metrics.jsonl`: every record as one line of JSON, for programs that follow or plot a run.

use std::path::Path;

use super::journal::Journal;
use super::record::{EpochRecord, GenerationRecord, Record, StepRecord};
use super::sink::Sink;
use crate::error::Result;

/// A sink that appends JSON lines.
#[derive(Debug)]
pub struct Jsonl {
    journal: Journal,
}

impl Jsonl {
    /// Opens the file for a run that continues after `after_step`, 0 in a new run. `epoch_end` is the step at which the
    /// last completed and validated epoch ended.
    ///
    /// Lines of later steps and epochs, and lines that are not JSON, are dropped: the run will write them again.
    ///
    /// # Errors
    /// [`crate::error::Error::Io`] naming the file.
    pub fn open(path: &Path, after_step: usize, epoch_end: usize) -> Result<Self> {
        let journal = Journal::open(path, |text| up_to(text, after_step, epoch_end))?;
        Ok(Self { journal })
    }

    fn write(&mut self, record: Record) -> Result<()> {
        self.journal.append(&line_of(&record))
    }
}

impl Sink for Jsonl {
    fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.write(Record::Step(*record))
    }

    fn epoch(&mut self, record: &EpochRecord) -> Result<()> {
        self.write(Record::Epoch(*record))
    }

    fn generation(&mut self, record: &GenerationRecord) -> Result<()> {
        self.write(Record::Generation(record.clone()))
    }
}

/// A record with its line break.
pub(super) fn line_of(record: &Record) -> Vec<u8> {
    let mut line = serde_json::to_vec(record).expect("plain numbers have a JSON form");
    line.push(b'\n');
    line
}

/// The steps up to and including `after_step`, and the epochs that ended at `epoch_end` or before.
fn up_to(text: &[u8], after_step: usize, epoch_end: usize) -> Vec<u8> {
    let keeps = |line: &&[u8]| match serde_json::from_slice(line) {
        Ok(Record::Step(record)) => record.step <= after_step,
        Ok(Record::Epoch(record)) => record.step <= epoch_end,
        // Changes of membership stay in the record even if their steps are repeated.
        Ok(Record::Generation(_)) => true,
        Err(_) => false,
    };
    text.split_inclusive(|byte| *byte == b'\n').filter(keeps).flatten().copied().collect()
}
