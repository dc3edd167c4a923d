//! Plain lines for a terminal, a log file or a pipe: no colours, no cursor movement.
//!
//! One line per interval of steps and one per epoch. If the reader closes the pipe (`train | head`), training continues
//! without output.

use std::io::Write;

use kiln_system::Result;

use super::line::{Goal, epoch_line, generation_line, step_line};
use super::meter::{ETA_WINDOW, Throughput};
use super::record::{Record, StepRecord};
use super::sink::Sink;

/// Default seconds between two lines.
const INTERVAL: f64 = 2.0;

#[derive(Debug)]
pub struct Console<W> {
    out: Option<W>,
    goal: Goal,
    log_every: usize,
    last_line: Option<f64>,
    pace: Throughput,
    columns: fn() -> usize,
}

impl<W: Write + Send> Console<W> {
    /// Writes to `out` every `log_every` steps; 0 means about every two seconds. The last step always has a line.
    pub fn new(out: W, goal: Goal, log_every: usize) -> Self {
        Self {
            out: Some(out),
            goal,
            log_every,
            last_line: None,
            pace: Throughput::new(ETA_WINDOW),
            columns: || usize::MAX,
        }
    }

    /// Fits every line to the `columns` that there are when it is written.
    pub fn within(self, columns: fn() -> usize) -> Self {
        Self { columns, ..self }
    }

    fn is_due(&self, record: &StepRecord) -> bool {
        let in_turn = match self.log_every {
            0 => self.last_line.is_none_or(|last| record.seconds - last >= INTERVAL),
            every => record.step.is_multiple_of(every),
        };
        in_turn || record.step == self.goal.steps
    }

    /// Writes a line; after the first error nothing more is written.
    fn line(&mut self, text: &str) {
        let Some(out) = &mut self.out else { return };
        let written = out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush());
        if written.is_err() {
            self.out = None;
        }
    }
}

impl<W: Write + Send> Sink for Console<W> {
    fn record(&mut self, record: &Record) -> Result<()> {
        match record {
            Record::Start(_) | Record::Replicas(_) => {}
            Record::Step(record) => {
                self.pace.mark(record.seconds, record.step as u64);
                if self.is_due(record) {
                    self.last_line = Some(record.seconds);
                    let eta = self.pace.eta(self.goal.steps.saturating_sub(record.step));
                    self.line(&step_line(record, &self.goal, eta, (self.columns)()));
                }
            }
            Record::Epoch(record) => self.line(&epoch_line(record, &self.goal, (self.columns)())),
            Record::Generation(record) => self.line(&generation_line(record)),
        }
        Ok(())
    }
}
