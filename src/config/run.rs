//! The `[run]` section of the configuration, documented for users in `config/default.toml`.

use std::path::PathBuf;
use std::time::Duration;

use kiln_ops::PrecisionKind;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgressKind {
    /// The dashboard on a terminal, plain lines elsewhere.
    Auto,
    /// A full-screen dashboard.
    Tui,
    Bar,
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
    pub seed: u64,
    pub epochs: usize,
    pub accumulation_steps: usize,
    pub early_stopping: usize,
    pub max_steps: usize,
    pub stop_after: usize,
    #[serde(with = "super::time_limit")]
    pub max_time: Duration,
    pub limit_train_batches: usize,
    pub limit_val_batches: usize,
    pub precision: PrecisionKind,
    #[serde(default)]
    pub half_if_fast: bool,
    pub deterministic: bool,
    pub threads: usize,
    pub output_dir: PathBuf,
    pub fast_dev_run: bool,
    pub dry_run: bool,
    pub progress: ProgressKind,
    pub log_every: usize,
    pub profile: bool,
    pub tensorboard: bool,
    pub requeue: bool,
    pub log_samples: bool,
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
