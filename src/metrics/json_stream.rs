//! The lines of `metrics.jsonl` on a stream, for a program that watches the run (`--progress json`). If it closes its end,
//! training goes on without output.

use std::io::Write;

use super::jsonl::json;
use super::record::{EpochRecord, GenerationRecord, Record, StepRecord};
use super::sink::Sink;
use crate::error::Result;

/// A sink that writes JSON lines to `W`.
#[derive(Debug)]
pub struct JsonStream<W> {
    /// `None` after the first error.
    out: Option<W>,
}

impl<W: Write + Send> JsonStream<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Self { out: Some(out) }
    }

    fn write(&mut self, record: Record) {
        let written = self.out.as_mut().map(|out| writeln!(out, "{}", json(&record)).and_then(|()| out.flush()));
        if written.is_some_and(|written| written.is_err()) {
            self.out = None;
        }
    }
}

impl<W: Write + Send> Sink for JsonStream<W> {
    fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.write(Record::Step(*record));
        Ok(())
    }

    fn epoch(&mut self, record: &EpochRecord) -> Result<()> {
        self.write(Record::Epoch(*record));
        Ok(())
    }

    fn generation(&mut self, record: &GenerationRecord) -> Result<()> {
        self.write(Record::Generation(record.clone()));
        Ok(())
    }
}
