//! Logs with lines that belong to steps: `samples.jsonl`, the images of each step, to prove that none was lost or seen
//! twice; `units.jsonl`, what every unit computed.

use std::path::Path;

use kiln_engine::parallel::StepReport;
use kiln_system::Result;
use serde::{Deserialize, Serialize};

use crate::metrics::journal::Journal;

#[derive(Debug, Serialize)]
pub(super) struct Samples<'a> {
    step: usize,
    epoch: usize,
    samples: &'a [u32],
}

impl<'a> Samples<'a> {
    pub(super) fn of(report: &'a StepReport) -> Self {
        Self { step: report.step, epoch: report.epoch, samples: &report.samples }
    }
}

#[derive(Debug)]
pub(super) struct StepLog(Journal);

impl StepLog {
    /// Continues the log at `path`; lines after step `after_step`, and a line cut short by a kill, are dropped.
    pub(super) fn open(path: &Path, after_step: usize) -> Result<Self> {
        #[derive(Deserialize)]
        struct Line {
            step: usize,
        }
        let keeps = |line: &[u8]| serde_json::from_slice::<Line>(line).is_ok_and(|line| line.step <= after_step);
        let keep = |bytes: &[u8]| {
            bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| keeps(line)).flatten().copied().collect()
        };
        Journal::open(path, keep).map(Self)
    }

    /// Appends lines, which have a `step`.
    pub(super) fn append<L: Serialize>(&mut self, lines: impl IntoIterator<Item = L>) -> Result<()> {
        let mut bytes = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut bytes, &line).expect("plain numbers are always JSON");
            bytes.push(b'\n');
        }
        self.0.append(&bytes)
    }
}
