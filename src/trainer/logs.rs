//! What a process writes while it trains: its log files, its progress, and the store of checkpoints.

use std::io::stdout;
use std::path::Path;

use super::learner::Display;
use super::samples::SampleLog;
use super::terminal::SignalKeys;
use crate::checkpoint::Store;
use crate::config::{Config, ProgressKind};
use crate::error::Result;
use crate::metrics::{Bar, Console, Csv, Goal, Jsonl, Sink};

/// Up to where the logs of earlier sessions, or of another process, hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// The last step.
    pub(super) step: usize,
    /// The step at which the last whole epoch ended.
    pub(super) epoch_end: usize,
}

/// Where reports go.
#[derive(Default)]
pub(super) struct Logs {
    pub(super) sinks: Vec<Box<dyn Sink>>,
    pub(super) samples: Option<SampleLog>,
    /// Of the process that writes checkpoints.
    pub(super) store: Option<Store>,
}

impl Logs {
    /// Opens everything in `directory`. Every process logs; what belongs to the run as a whole is written by the one of
    /// rank 0.
    pub(super) fn open(
        config: &Config,
        directory: &Path,
        rank: usize,
        kept: Kept,
        goal: Goal,
        display: Display,
    ) -> Result<Self> {
        let (run, first) = (&config.run, rank == 0);
        let log = if first { "metrics.jsonl".into() } else { format!("rank-{rank}.jsonl") };
        let log = Jsonl::open(&directory.join(log), kept.step, kept.epoch_end)?;
        let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(log)];
        if first {
            sinks.push(Box::new(Csv::open(&directory.join("metrics.csv"), kept.epoch_end)?));
        }
        match run.progress {
            ProgressKind::Bar => sinks.push(Box::new(Bar::new(goal))),
            ProgressKind::None => {}
            _ if display == Display::Terminal => sinks.push(Box::new(SignalKeys::default())),
            _ => sinks.push(Box::new(Console::new(stdout(), goal, run.log_every))),
        }
        let samples = directory.join("samples.jsonl");
        Ok(Self {
            sinks,
            samples: (first && run.log_samples).then(|| SampleLog::open(&samples, kept.step)).transpose()?,
            store: first.then(|| Store::open(directory)).transpose()?,
        })
    }
}
