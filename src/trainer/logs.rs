//! The outputs of a training process: log files, progress, and the store of checkpoints.

use std::io::stdout;
use std::path::Path;
use std::sync::Arc;

use kiln_engine::checkpoint::Store;
use kiln_engine::parallel::Plan;
use kiln_system::Result;
use kiln_training::backend;
use parking_lot::Mutex;

use super::snapshot::Snapshots;
use super::step_log::StepLog;
use crate::config::{Config, ProgressKind};
#[cfg(feature = "tui")]
use crate::metrics::Dashboard;
use crate::metrics::terminal::columns;
use crate::metrics::{
    Bar, Console, Csv, Goal, JsonStream, Jsonl, Record, Sink, StartRecord, TensorBoard, command, date,
};

/// The position up to which the logs of earlier sessions, or of another process, are valid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) step: usize,
    /// The step at which the last whole epoch ended.
    pub(super) epoch_end: usize,
}

#[derive(Default)]
pub(super) struct Logs {
    pub(super) sinks: Vec<Box<dyn Sink>>,
    /// How many of them, the first ones, are files.
    pub(super) files: usize,
    pub(super) samples: Option<StepLog>,
    pub(super) units: Option<StepLog>,
    /// For the process that writes checkpoints.
    pub(super) store: Option<Arc<Mutex<Store>>>,
}

impl Logs {
    /// Opens the logs in `directory`. Every process has logs; only rank 0 writes the logs of the whole run.
    pub(super) fn open(
        snapshots: &Snapshots,
        directory: &Path,
        rank: usize,
        kept: LogPosition,
        plan: &Plan,
        display: ProgressKind,
    ) -> Result<Self> {
        let Snapshots { config, experiment, .. } = snapshots;
        let (run, first) = (&config.run, rank == 0);
        let goal = Goal { epochs: plan.epochs, steps: plan.last_step };
        let log = if first { "metrics.jsonl".into() } else { format!("rank-{rank}.jsonl") };
        let log = Jsonl::open(&directory.join(log), kept.step, kept.epoch_end)?;
        let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(log)];
        if first {
            sinks.push(Box::new(Csv::open(&directory.join("metrics.csv"), kept.epoch_end)?));
        }
        if first && run.tensorboard {
            sinks.push(Box::new(board(config, &directory.join("tensorboard"), kept)?));
        }
        let files = sinks.len();
        match display {
            #[cfg(feature = "tui")]
            ProgressKind::Tui => sinks.push(Box::new(Dashboard::new(goal, plan.stop.clone()))),
            ProgressKind::Bar => sinks.push(Box::new(Bar::new(goal))),
            ProgressKind::Json => sinks.push(Box::new(JsonStream::new(stdout()))),
            ProgressKind::None => {}
            _ => {
                sinks.push(Box::new(Console::new(stdout(), goal, run.log_every).within(columns)));
            }
        }
        let start = Record::Start(Box::new(StartRecord {
            step: kept.step,
            epochs: goal.epochs,
            steps: goal.steps,
            directory: directory.to_path_buf(),
            settings: config.to_toml(),
            about: experiment.clone(),
            command: command(),
            date: date(),
        }));
        sinks.iter_mut().try_for_each(|sink| sink.record(&start))?;
        let open =
            |name, is_on: bool| (first && is_on).then(|| StepLog::open(&directory.join(name), kept.step)).transpose();
        Ok(Self {
            sinks,
            files,
            samples: open("samples.jsonl", run.log_samples)?,
            units: open("units.jsonl", run.log_units)?,
            store: first.then(|| Store::open(directory).map(|store| Arc::new(Mutex::new(store)))).transpose()?,
        })
    }

    pub(super) fn record(&mut self, record: &Record) -> Result<()> {
        self.sinks.iter_mut().try_for_each(|sink| sink.record(record))
    }
}

fn board(config: &Config, directory: &Path, kept: LogPosition) -> Result<TensorBoard> {
    let mut board = TensorBoard::open(directory, kept.step)?;
    if !backend(config.parallel.backend)?.is_processor() {
        board = board.watching(&config.parallel.gpu_ids);
    }
    if kept.step == 0 {
        // Only in the first session, as TensorBoard would show it again for each.
        let indented: String = config.to_toml().lines().map(|line| format!("    {line}\n")).collect();
        board.text("configuration", 0, &indented)?;
    }
    Ok(board)
}
