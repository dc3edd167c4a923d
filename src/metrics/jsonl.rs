//! `metrics.jsonl`: every record as one line of JSON, for programs that follow or plot a run.

use std::path::Path;

use serde::Deserialize;

use super::journal::Journal;
use super::record::{EpochRecord, Record, StepRecord};
use super::sink::Sink;
use crate::error::Result;

/// A sink that appends JSON lines.
#[derive(Debug)]
pub struct Jsonl {
    journal: Journal,
}

impl Jsonl {
    /// Opens the file for a run that goes on after `after_step`; a new run goes on after step 0.
    ///
    /// Lines of later steps, and lines that are not JSON, are dropped first: the run will write them again.
    ///
    /// # Errors
    /// [`crate::error::Error::Io`] naming the file.
    pub fn open(path: &Path, after_step: usize) -> Result<Self> {
        let journal = Journal::open(path, |text| up_to(text, after_step))?;
        Ok(Self { journal })
    }

    fn write(&mut self, record: Record) -> Result<()> {
        let mut line = serde_json::to_vec(&record).expect("plain numbers have a JSON form");
        line.push(b'\n');
        self.journal.append(&line)
    }
}

impl Sink for Jsonl {
    fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.write(Record::Step(*record))
    }

    fn epoch(&mut self, record: &EpochRecord) -> Result<()> {
        self.write(Record::Epoch(*record))
    }
}

/// The lines up to and including a step.
fn up_to(text: &[u8], after_step: usize) -> Vec<u8> {
    #[derive(Deserialize)]
    struct Position {
        step: usize,
    }
    let keeps = |line: &&[u8]| serde_json::from_slice(line).is_ok_and(|at: Position| at.step <= after_step);
    text.split_inclusive(|byte| *byte == b'\n').filter(keeps).flatten().copied().collect()
}
