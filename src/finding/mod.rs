//! Settings that a short run can find: a learning rate and a batch size.
//!
//! Reading order: [`learning_rate`] is the range test and [`curve`] its averaged losses; [`batch_size`] compares trials,
//! [`search`] says which to make; [`text`], [`charts`] and [`page`] show it all.
//!
//! This room makes no run; it is handed what runs measured.

pub mod batch_size;
pub mod charts;
pub mod curve;
pub mod learning_rate;
pub mod page;
pub mod search;
pub mod text;
mod wanted;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

pub use batch_size::{Analysis, MemoryLine, Outcome, Trial};
pub use learning_rate::{NoSuggestion, Probe, RangeTest, Suggestion};
pub use search::{Bounds, next};
pub use wanted::Find;

use crate::checkpoint::{check_writable, write_atomic};
use crate::error::{Error, Result};
use crate::report::chart::Figure;
use crate::report::{png, svg};

/// What a JSON file holds.
#[derive(Serialize)]
struct File<'a, Findings> {
    about: &'a BTreeMap<String, String>,
    /// What a reader must know; says why, if nothing is suggested.
    notes: Vec<String>,
    #[serde(flatten)]
    findings: &'a Findings,
    #[serde(skip_serializing_if = "Option::is_none")]
    suggestion: Option<&'a Suggestion>,
}

impl RangeTest {
    /// Writes `find-lr.csv`, `.json`, `.svg`, `.png` and, last, `.html`; `about` says what the test was made with. In
    /// JSON a loss that is not finite is null.
    ///
    /// # Errors
    /// [`crate::error::Error::Io`] naming the file that cannot be written.
    pub fn write(&self, directory: &Path, about: &BTreeMap<String, String>) -> Result<()> {
        let notes = self.verdict.as_ref().err().map(|none| format!("no suggestion: {none}")).into_iter().collect();
        let json = File { about, notes, findings: self, suggestion: self.verdict.as_ref().ok() };
        let figure = charts::loss(self).figure();
        let csv = text::csv(&text::step_rows(self));
        write(directory, "find-lr", &figure, csv, json, page::learning_rate(self, about))
    }
}

impl Analysis {
    /// Writes `find-batch-size.csv`, `.json`, `.svg`, `.png` and, last, `.html`; `about` says what the trials were made
    /// with.
    ///
    /// # Errors
    /// [`crate::error::Error::Io`] naming the file that cannot be written.
    pub fn write(&self, directory: &Path, about: &BTreeMap<String, String>) -> Result<()> {
        let json = File { about, notes: self.caveats(), findings: self, suggestion: None };
        let csv = text::csv(&text::trial_rows(self));
        write(directory, "find-batch-size", &charts::main(self), csv, json, page::batch_size(self, about))
    }
}

fn write(
    directory: &Path,
    name: &str,
    figure: &Figure,
    csv: Vec<u8>,
    json: impl Serialize,
    page: String,
) -> Result<()> {
    let json = serde_json::to_vec_pretty(&json).expect("names and numbers have a JSON form");
    let files = [
        ("csv", csv),
        ("json", json),
        ("svg", svg::file(figure).into_bytes()),
        ("png", png::file(figure)),
        ("html", page.into_bytes()),
    ]
    .map(|(ending, bytes)| (directory.join(format!("{name}.{ending}")), bytes));
    std::fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
    files.iter().try_for_each(|(path, _)| check_writable(path))?;
    files.iter().try_for_each(|(path, bytes)| write_atomic(path, bytes))
}
