//! Learning rate and batch size from short runs.
//!
//! `learning_rate` is the range test, `curve` its averaged losses; `batch_size` compares trials, [`search`]
//! selects the next one; `text` and [`charts`] present the results.

mod batch_size;
pub mod charts;
mod curve;
mod learning_rate;
pub mod search;
mod text;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

pub use batch_size::Analysis;
pub use curve::Probe;
pub use learning_rate::{RangeTest, Suggestion};
pub use search::{Bounds, MemoryLine, Outcome, Trial, next};

use super::write;
use kiln_system::Result;

#[derive(Serialize)]
struct File<'a, Findings> {
    about: &'a BTreeMap<String, String>,
    /// Notes for the reader, among them the reason if nothing is suggested.
    notes: Vec<String>,
    #[serde(flatten)]
    findings: &'a Findings,
    #[serde(skip_serializing_if = "Option::is_none")]
    suggestion: Option<&'a Suggestion>,
}

impl RangeTest {
    /// Writes `find-lr.csv`, `.json` and, last, `.svg`; `about` describes hardware and settings. In JSON, losses that
    /// are not finite are null.
    pub fn write(&self, directory: &Path, about: &BTreeMap<String, String>) -> Result<()> {
        let notes = self.verdict.as_ref().err().map(|none| format!("no suggestion: {none}")).into_iter().collect();
        let json = File { about, notes, findings: self, suggestion: self.verdict.as_ref().ok() };
        write(directory, "find-lr", &text::step_rows(self), &json, &[charts::loss(self)])
    }
}

impl Analysis {
    /// Writes `find-batch-size.csv`, `.json` and, last, `.svg`; `about` describes hardware and settings.
    pub fn write(&self, directory: &Path, about: &BTreeMap<String, String>) -> Result<()> {
        let json = File { about, notes: self.caveats(), findings: self, suggestion: None };
        write(directory, "find-batch-size", &text::trial_rows(self), &json, &charts::trials(self))
    }
}
