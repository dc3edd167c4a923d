//! The `[run]` section of the configuration, documented for users in `config/default.toml`.

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
    /// The lines of `metrics.jsonl` and one about the end, and nothing else.
    Json,
    /// Nothing but the result.
    None,
}

impl ProgressKind {
    /// Whether the plan, the progress and the result are shown as text.
    pub fn is_text(self) -> bool {
        !matches!(self, Self::Json | Self::None)
    }
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
    /// Consecutive epochs without a better validation after which the run ends; 0 means never.
    pub early_stopping: usize,
    /// Optimizer steps after which the run ends; 0 means no limit.
    pub max_steps: usize,
    /// Epochs after which the run ends, with the schedule of all epochs; 0 means the last one.
    pub stop_after: usize,
    /// Time after which the run ends regularly; zero means no limit. Written as `2h30m`.
    #[serde(with = "super::time_limit")]
    pub max_time: Duration,
    /// Global micro-batches per epoch; 0 means all.
    pub limit_train_batches: usize,
    /// Global batches per validation; 0 means all.
    pub limit_val_batches: usize,
    /// The precision of convolutions and the linear layer.
    pub precision: PrecisionKind,
    /// Whether f32 takes the place of a half type for which the device has no instructions.
    #[serde(default)]
    pub half_if_fast: bool,
    /// Whether results must be bitwise reproducible; see `config/default.toml`.
    pub deterministic: bool,
    /// CPU threads; 0 means one per core.
    pub threads: usize,
    /// The run's directory; empty means the next free `runs/NNNN`.
    pub output_dir: PathBuf,
    /// Whether to make a run of seconds that uses every part; see `config/default.toml`.
    pub fast_dev_run: bool,
    /// Whether to stop before the first step, after all checks.
    pub dry_run: bool,
    /// How progress is shown.
    pub progress: ProgressKind,
    /// Optimizer steps between two progress lines; 0 means about two seconds.
    pub log_every: usize,
    /// Whether phases are timed; see [`crate::metrics::profile`].
    pub profile: bool,
    /// Whether event files for TensorBoard are written; see [`crate::metrics::tensorboard`].
    pub tensorboard: bool,
    /// Whether a SLURM job that is ended by a signal is requeued.
    pub requeue: bool,
    /// Whether the ids of every step's images are written to `samples.jsonl`.
    pub log_samples: bool,
    /// Whether what every unit of the model computes is written to `units.jsonl`.
    pub log_units: bool,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            epochs: 50,
            accumulation_steps: 1,
            early_stopping: 0,
            max_steps: 0,
            stop_after: 0,
            max_time: Duration::ZERO,
            limit_train_batches: 0,
            limit_val_batches: 0,
            precision: PrecisionKind::F32,
            half_if_fast: false,
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
            log_units: false,
        }
    }
}
