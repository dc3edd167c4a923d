//! What the user may choose about the run as a whole: how long, how reproducible, how talkative.
//!
//! The `[run]` section as it runs; `config/default.toml` documents it for users and the rules of the config room check
//! it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ops::PrecisionKind;

/// How progress is shown on the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgressKind {
    /// The dashboard on a terminal, plain lines elsewhere.
    Auto,
    /// A full-screen dashboard.
    Tui,
    /// One bar per epoch.
    Bar,
    /// Lines of text.
    Plain,
    /// Nothing but the result.
    None,
}

/// The `[run]` section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// Seed of every random number.
    pub seed: u64,
    /// Passes over the training images, at least 1.
    pub epochs: usize,
    /// Micro-batches per optimizer step, at least 1.
    pub accumulation_steps: usize,
    /// Epochs in a row without a better validation after which the run ends; 0 for never.
    pub early_stopping: usize,
    /// Optimizer steps after which the run ends; 0 means no limit.
    pub max_steps: usize,
    /// Time after which the run ends in good order; zero means no limit. Text such as `2h30m` to the user.
    #[serde(with = "super::time_limit")]
    pub max_time: Duration,
    /// Global micro-batches per epoch; 0 means all.
    pub limit_train_batches: usize,
    /// Global batches per validation; 0 means all.
    pub limit_val_batches: usize,
    /// What convolutions and the linear layer compute in.
    pub precision: PrecisionKind,
    /// Whether the same bits are asked for; see `config/default.toml`.
    pub deterministic: bool,
    /// CPU threads; 0 means one per core.
    pub threads: usize,
    /// Where the run is written; empty means the next free `runs/NNNN`.
    pub output_dir: PathBuf,
    /// A run of seconds that touches every part; see `config/default.toml`.
    pub fast_dev_run: bool,
    /// Whether to stop after everything has been checked and built, before the first step.
    pub dry_run: bool,
    /// How progress is shown.
    pub progress: ProgressKind,
    /// Optimizer steps between two lines of progress; 0 means about two seconds.
    pub log_every: usize,
    /// Whether phases are timed; see [`crate::metrics::profile`].
    pub profile: bool,
    /// Whether event files for TensorBoard are written; see [`crate::metrics::tensorboard`].
    pub tensorboard: bool,
    /// Whether a job of SLURM that a signal ends is put back into the queue.
    pub requeue: bool,
    /// Whether the images of every step are written to `samples.jsonl`.
    pub log_samples: bool,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            epochs: 50,
            accumulation_steps: 1,
            early_stopping: 0,
            max_steps: 0,
            max_time: Duration::ZERO,
            limit_train_batches: 0,
            limit_val_batches: 0,
            precision: PrecisionKind::F32,
            deterministic: false,
            threads: 0,
            output_dir: PathBuf::new(),
            fast_dev_run: false,
            dry_run: false,
            progress: ProgressKind::Auto,
            log_every: 0,
            profile: false,
            tensorboard: false,
            requeue: false,
            log_samples: false,
        }
    }
}
