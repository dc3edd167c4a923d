//! Learning rate and batch size from short runs.
//!
//! [`learning_rate`] is the range test, [`curve`] its averaged losses; [`batch_size`] compares trials, [`search`]
//! selects the next one; [`text`], [`charts`] and [`page`] present the results.

pub mod batch_size;
pub mod charts;
pub mod curve;
pub mod learning_rate;
pub mod page;
pub mod search;
pub mod text;
mod trial;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

pub use batch_size::Analysis;
pub use curve::Probe;
pub use learning_rate::{NoSuggestion, RangeTest, Suggestion};
pub use search::{Bounds, next};
pub use trial::{MemoryLine, Outcome, Trial};

use super::scaling::table::csv;
use super::write;
use crate::error::Result;

/// The setting to find.
#[derive(Debug, Clone, PartialEq)]
pub enum Find {
    /// A learning rate, by a range test.
    LearningRate {
        /// The lowest rate, of all replicas together.
        from: f64,
        /// The highest.
        to: f64,
        /// Optimizer steps.
        steps: usize,
    },
    /// The largest batch of a replica that fits.
    BatchSize {
        /// The largest size to try.
        largest: usize,
    },
}

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
    /// Writes `find-lr.csv`, `.json`, `.svg`, `.png` and, last, `.html`; `about` describes hardware and settings. In
    /// JSON, losses that are not finite are null.
    ///
    /// # Errors
    /// [`crate::error::Error::Io`] naming the file that cannot be written.
    pub fn write(&self, directory: &Path, about: &BTreeMap<String, String>) -> Result<()> {
        let notes = self.verdict.as_ref().err().map(|none| format!("no suggestion: {none}")).into_iter().collect();
        let json = File { about, notes, findings: self, suggestion: self.verdict.as_ref().ok() };
        let figure = charts::loss(self).figure();
        let csv = csv(&text::step_rows(self));
        write(directory, "find-lr", &figure, csv, &json, page::learning_rate(self, about))
    }
}

impl Analysis {
    /// Writes `find-batch-size.csv`, `.json`, `.svg`, `.png` and, last, `.html`; `about` describes hardware and
    /// settings.
    ///
    /// # Errors
    /// [`crate::error::Error::Io`] naming the file that cannot be written.
    pub fn write(&self, directory: &Path, about: &BTreeMap<String, String>) -> Result<()> {
        let json = File { about, notes: self.caveats(), findings: self, suggestion: None };
        let csv = csv(&text::trial_rows(self));
        write(directory, "find-batch-size", &charts::main(self), csv, &json, page::batch_size(self, about))
    }
}
