//! `metrics.csv`, one row per epoch under a header, and other tables for spreadsheets.

use std::path::Path;

use ::csv::{Reader, Writer, WriterBuilder};
use kiln_system::Result;
use serde::Serialize;

use super::journal::Journal;
use super::record::{EpochRecord, Record};
use super::sink::Sink;

#[derive(Debug)]
pub struct Csv(Journal);

impl Csv {
    /// Opens the file. `epoch_end` is the step at which the last completed and validated epoch ended, 0 in a new run.
    ///
    /// Incomplete rows and rows of later epochs are dropped: the run will write them again.
    pub fn open(path: &Path, epoch_end: usize) -> Result<Self> {
        let is_kept = |record: &EpochRecord| record.step <= epoch_end;
        let kept =
            |old: &[u8]| Reader::from_reader(old).into_deserialize().flatten().filter(is_kept).collect::<Vec<_>>();
        Journal::open(path, |old| rows(&kept(old), true)).map(Self)
    }
}

impl Sink for Csv {
    fn record(&mut self, record: &Record) -> Result<()> {
        let Record::Epoch(record) = record else { return Ok(()) };
        self.0.append(&rows(&[record], self.0.is_empty()?))
    }
}

/// Flat records as CSV, perhaps below a header.
pub(crate) fn rows(records: &[impl Serialize], has_header: bool) -> Vec<u8> {
    let mut writer = WriterBuilder::new().has_headers(has_header).from_writer(Vec::new());
    records.iter().for_each(|record| writer.serialize(record).expect("a flat record is a row, and memory takes it"));
    text(writer)
}

/// Rows of equal length as CSV. A cell that a spreadsheet would compute as a formula begins with an apostrophe; numbers
/// stay.
pub fn table<R: IntoIterator<Item = String>>(rows: impl IntoIterator<Item = R>) -> Vec<u8> {
    let is_formula = |cell: &str| cell.starts_with(['=', '+', '-', '@', '\t', '\r']) && cell.parse::<f64>().is_err();
    let cell = |cell: String| if is_formula(&cell) { format!("'{cell}") } else { cell };
    let mut writer = Writer::from_writer(Vec::new());
    for row in rows {
        writer.write_record(row.into_iter().map(cell)).expect("rows of one length are a table, and memory takes it");
    }
    text(writer)
}

fn text(writer: Writer<Vec<u8>>) -> Vec<u8> {
    writer.into_inner().expect("writing to memory does not fail")
}
