//! The `[run]` section of the configuration, documented for users in `config/default.toml`.

use std::path::PathBuf;
use std::time::Duration;

use kiln_ops::Precision;
use kiln_system::with_defaults;
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

with_defaults! {
    /// The `[run]` section.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RunConfig {
        pub seed: u64 = 0,
        pub epochs: usize = 50,
        pub accumulation_steps: usize = 1,
        pub early_stopping: usize = 0,
        pub max_steps: usize = 0,
        pub stop_after: usize = 0,
        #[serde(with = "super::time_limit")]
        pub max_time: Duration = Duration::ZERO,
        pub limit_train_batches: usize = 0,
        pub limit_val_batches: usize = 0,
        pub precision: Precision = Precision::F32,
        #[serde(default)]
        pub half_if_fast: bool = false,
        pub deterministic: bool = false,
        pub threads: usize = 0,
        pub output_dir: PathBuf = PathBuf::new(),
        pub fast_dev_run: bool = false,
        pub dry_run: bool = false,
        pub progress: ProgressKind = ProgressKind::Auto,
        pub log_every: usize = 0,
        pub profile: bool = false,
        pub tensorboard: bool = false,
        pub mlflow: bool = false,
        pub serve: String = String::new(),
        pub requeue: bool = false,
        pub log_samples: bool = false,
        pub log_units: bool = false,
    }
}
