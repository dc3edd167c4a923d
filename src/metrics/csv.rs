//! `metrics.csv`, one row per epoch under a header, and other tables for spreadsheets.

use std::path::Path;

use ::csv::{ReaderBuilder, StringRecord, Writer, WriterBuilder};
use kiln_system::Result;
use serde::Serialize;

use super::journal::Journal;
use super::record::Record;
use super::sink::Sink;

#[derive(Debug)]
pub struct Csv {
    journal: Journal,
}

impl Csv {
    /// Opens the file. `epoch_end` is the step at which the last completed and validated epoch ended, 0 in a new run.
    ///
    /// Incomplete rows and rows of later epochs are dropped: the run will write them again.
    pub fn open(path: &Path, epoch_end: usize) -> Result<Self> {
        let journal = Journal::open(path, |text| up_to(text, epoch_end))?;
        Ok(Self { journal })
    }
}

impl Sink for Csv {
    fn record(&mut self, record: &Record) -> Result<()> {
        let Record::Epoch(record) = record else { return Ok(()) };
        self.journal.append(&rows(&[record], self.journal.is_empty()?))
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

/// The header and the rows up to and including a step; nothing if there is no such row.
fn up_to(old: &[u8], epoch_end: usize) -> Vec<u8> {
    let mut reader = ReaderBuilder::new().from_reader(old);
    let Ok(header) = reader.headers().cloned() else { return Vec::new() };
    let Some(column) = header.iter().position(|name| name == "step") else { return Vec::new() };
    let step = |row: &StringRecord| row.get(column)?.parse::<usize>().ok();
    let rows = reader.records().flatten().filter(|row| step(row).is_some_and(|step| step <= epoch_end));
    let mut kept = rows.peekable();
    if kept.peek().is_none() {
        return Vec::new();
    }
    let mut writer = Writer::from_writer(Vec::new());
    for row in std::iter::once(header).chain(kept) {
        writer.write_record(&row).expect("the reader passes rows of one length only");
    }
    text(writer)
}

fn text(writer: Writer<Vec<u8>>) -> Vec<u8> {
    writer.into_inner().expect("writing to memory does not fail")
}
