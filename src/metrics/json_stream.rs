//! The lines of `metrics.jsonl` on a stream, for a program that watches the run (`--progress json`), which ends with
//! one of kind `end`. If the program closes its end, training continues without output.

use std::io::Write;

use kiln_system::Result;
use serde::Serialize;

use super::jsonl::json;
use super::record::Record;
use super::sink::Sink;
use super::summary::Summary;

#[derive(Serialize)]
struct End<'a> {
    kind: &'static str,
    #[serde(flatten)]
    summary: &'a Summary,
}

#[derive(Debug)]
pub(crate) struct JsonStream<W> {
    /// `None` after the first error.
    out: Option<W>,
}

impl<W: Write + Send> JsonStream<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out: Some(out) }
    }

    /// Writes how the run ended: the content of `summary.json` as a record.
    pub(crate) fn end(&mut self, summary: &Summary) {
        let line = serde_json::to_string(&End { kind: "end", summary });
        self.line(&line.expect("plain numbers and paths are always JSON"));
    }

    fn line(&mut self, line: &str) {
        let written = self.out.as_mut().map(|out| writeln!(out, "{line}").and_then(|()| out.flush()));
        if written.is_some_and(|written| written.is_err()) {
            self.out = None;
        }
    }
}

impl<W: Write + Send> Sink for JsonStream<W> {
    fn record(&mut self, record: &Record) -> Result<()> {
        self.line(&json(record));
        Ok(())
    }
}
