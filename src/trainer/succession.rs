//! Which process of an elastic run writes the logs, and how the next one takes over after its loss.
//!
//! The process of replica 0 writes. The others keep the latest reports, and the next writer continues the files from
//! the first report that may be missing, so that every step is in the logs once.

use std::collections::VecDeque;
use std::sync::Arc;

use kiln_engine::parallel::{GenerationReport, Position, StepReport};
use kiln_system::Result;

use super::logs::{LogPosition, Logs};
use super::step_log::Samples;
use crate::config::ProgressKind;
use crate::launch::ElasticMembership;
use crate::metrics::{EpochRecord, Record, StepRecord};

/// How many reports are kept: more than may wait in the coordinator's channel.
const RECENT: usize = 64;

enum Recent {
    Step(StepRecord, Box<StepReport>),
    Epoch(EpochRecord),
}

/// The state of this process as a writer, or a possible next one.
pub(super) struct Succession {
    pub(super) membership: Arc<dyn ElasticMembership>,
    pub(super) display: ProgressKind,
    pub(super) leads: bool,
    recent: VecDeque<Recent>,
    /// The position up to which the files are valid before the recent reports.
    kept: LogPosition,
    last: usize,
}

impl Succession {
    pub(super) fn new(membership: Arc<dyn ElasticMembership>, display: ProgressKind) -> Self {
        Self { membership, display, leads: false, recent: VecDeque::new(), kept: LogPosition::default(), last: 0 }
    }

    /// Others waited so long for this process, in seconds: in the last minute, and in all.
    pub(super) fn step(&mut self, record: StepRecord, report: &StepReport, waited: [f64; 2]) {
        self.last = record.step;
        self.membership.progress(record.step, record.images_per_second.unwrap_or_default(), waited);
        self.keep(Recent::Step(record, Box::new(report.clone())));
    }

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

    /// Drops reports after the beginning of the next generation, which were not committed. Returns whether the files
    /// that this process writes must be opened again.
    fn rewind(&mut self, position: &Position) -> bool {
        let epoch_end = position.global_step - position.step_in_epoch.min(position.global_step);
        if position.global_step > self.last || self.kept.step > position.global_step {
            self.recent.clear();
            (self.kept, self.last) = (LogPosition { step: position.global_step, epoch_end }, position.global_step);
            return true;
        }
        let before = self.recent.len();
        self.recent.retain(|report| match report {
            Recent::Step(record, _) => record.step <= position.global_step,
            Recent::Epoch(record) => record.step <= epoch_end,
        });
        self.last = position.global_step;
        self.recent.len() < before
    }

    /// Begins a generation: opens the files by `open` if this process begins to write, and closes those in `logs` if
    /// another one does.
    pub(super) fn begin(
        &mut self,
        report: &GenerationReport,
        logs: &mut Logs,
        open: impl FnOnce(LogPosition) -> Result<Logs>,
    ) -> Result<()> {
        let (rewound, led) = (self.rewind(&report.position), self.leads);
        self.leads = report.hosted.start == 0;
        if !self.leads {
            *logs = Logs::default();
        } else if rewound || !led {
            *logs = open(self.kept)?;
            for report in &self.recent {
                logs.write(report, led)?;
            }
        }
        Ok(())
    }
}

impl Logs {
    /// Writes a report that was kept; one that this process has shown only to files.
    fn write(&mut self, report: &Recent, is_shown: bool) -> Result<()> {
        let count = if is_shown { self.files } else { self.sinks.len() };
        let mut sinks = self.sinks[..count].iter_mut();
        match report {
            Recent::Epoch(record) => sinks.try_for_each(|sink| sink.record(&Record::Epoch(*record))),
            Recent::Step(record, report) => {
                self.samples.as_mut().map_or(Ok(()), |samples| samples.append([Samples::of(report)]))?;
                sinks.try_for_each(|sink| sink.record(&Record::Step(*record)))
            }
        }
    }
}
