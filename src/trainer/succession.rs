//! Which process of an elastic run writes its logs, and how the next one takes over when it is lost.
//!
//! The process of replica 0 writes. What it had not written yet when it was lost, the others have seen too: each keeps
//! the latest reports, and the next writer opens the files where those begin. So every step stands in the logs once.

use std::collections::VecDeque;
use std::sync::Arc;

use super::logs::{Kept, Logs};
use crate::config::ProgressKind;
use crate::error::Result;
use crate::launch::Members;
use crate::metrics::{EpochRecord, Goal, StepRecord};
use crate::parallel::{GenerationReport, Position, StepReport};

/// How many reports are kept: more than may wait in the channel to a coordinator.
const RECENT: usize = 64;

/// A report as it is written.
enum Recent {
    Step(StepRecord, Box<StepReport>),
    Epoch(EpochRecord),
}

impl Recent {
    fn step(&self) -> usize {
        match self {
            Self::Step(record, _) => record.step,
            Self::Epoch(record) => record.step,
        }
    }
}

/// The part of this process in the writing of an elastic run.
pub(super) struct Succession {
    pub(super) members: Arc<dyn Members>,
    pub(super) goal: Goal,
    pub(super) display: ProgressKind,
    /// Whether this process writes.
    pub(super) leads: bool,
    recent: VecDeque<Recent>,
    /// What the files must hold before the recent reports.
    kept: Kept,
    /// The last step that was reported here.
    last: usize,
}

impl Succession {
    pub(super) fn new(members: Arc<dyn Members>, goal: Goal, display: ProgressKind) -> Self {
        Self { members, goal, display, leads: false, recent: VecDeque::new(), kept: Kept::default(), last: 0 }
    }

    /// Keeps a step.
    pub(super) fn step(&mut self, record: StepRecord, report: &StepReport) {
        self.last = record.step;
        self.members.progress(record.step, record.images_per_second.unwrap_or_default());
        self.keep(Recent::Step(record, Box::new(report.clone())));
    }

    /// Keeps an epoch.
    pub(super) fn epoch(&mut self, record: EpochRecord) {
        self.keep(Recent::Epoch(record));
    }

    fn keep(&mut self, report: Recent) {
        self.recent.push_back(report);
        if self.recent.len() > RECENT {
            match self.recent.pop_front() {
                Some(Recent::Step(record, _)) => self.kept.step = record.step,
                Some(Recent::Epoch(record)) => self.kept.epoch_end = record.step,
                None => {}
            }
        }
    }

    /// Learns where the next generation begins; what came after has not happened. Whether files that this process
    /// writes already must be opened anew.
    fn rewind(&mut self, position: &Position) -> bool {
        let epoch_end = position.global_step - position.step_in_epoch.min(position.global_step);
        if position.global_step > self.last || self.kept.step > position.global_step {
            self.recent.clear();
            (self.kept, self.last) = (Kept { step: position.global_step, epoch_end }, position.global_step);
            return true;
        }
        let before = self.recent.len();
        self.recent.retain(|report| match report {
            Recent::Step(..) => report.step() <= position.global_step,
            Recent::Epoch(_) => report.step() <= epoch_end,
        });
        self.last = position.global_step;
        self.recent.len() < before
    }

    /// Begins a generation: opens the files by `open` if this process writes from now on, and closes them in `logs` if
    /// another one does.
    pub(super) fn begin(
        &mut self,
        report: &GenerationReport,
        logs: &mut Logs,
        open: impl FnOnce(Kept) -> Result<Logs>,
    ) -> Result<()> {
        let (rewound, led) = (self.rewind(&report.position), self.leads);
        self.leads = report.hosted.start == 0;
        if !self.leads {
            *logs = Logs::default();
        } else if rewound || !led {
            *logs = open(self.kept)?;
            for report in &self.recent {
                logs.write(report)?;
            }
        }
        Ok(())
    }
}

impl Logs {
    fn write(&mut self, report: &Recent) -> Result<()> {
        use crate::metrics::Sink;
        match report {
            Recent::Epoch(record) => self.sinks.epoch(record),
            Recent::Step(record, report) => {
                self.samples.as_mut().map_or(Ok(()), |samples| samples.append(report))?;
                self.sinks.step(record)
            }
        }
    }
}
