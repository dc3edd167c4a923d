//! `samples.jsonl`: which images each step trained on, to prove that none was lost or seen twice.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::metrics::journal::Journal;
use crate::parallel::StepReport;

/// One line: a step and the images of its global batch.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    step: usize,
    epoch: usize,
    samples: Vec<u32>,
}

/// The log of a run.
#[derive(Debug)]
pub(super) struct SampleLog(Journal);

impl SampleLog {
    /// Continues the log at `path`; lines after step `after_step`, and a line cut short by a kill, are dropped.
    pub(super) fn open(path: &Path, after_step: usize) -> Result<Self> {
        let keeps = |line: &[u8]| serde_json::from_slice::<Line>(line).is_ok_and(|line| line.step <= after_step);
        let keep = |bytes: &[u8]| {
            bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| keeps(line)).flatten().copied().collect()
        };
        Journal::open(path, keep).map(Self)
    }

    pub(super) fn append(&mut self, report: &StepReport) -> Result<()> {
        let line = Line { step: report.step, epoch: report.epoch, samples: report.samples.clone() };
        let mut bytes = serde_json::to_vec(&line).expect("plain numbers are always JSON");
        bytes.push(b'\n');
        self.0.append(&bytes)
    }
}
