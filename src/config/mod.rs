//! The configuration, and its resolution from files, environment and command line.
//!
//! [`Config`] is composed of the sections that the rooms declare with their code: every value is present, checked and
//! printable as TOML. [`resolve()`] builds it from layers; later ones win:
//!
//! ```text
//! code defaults < config/default.toml < implied < --config FILE < groups (optim=sgd) < TRAIN__SECTION__KEY < KEY=VALUE < flags
//! ```
//!
//! A source of images and pretrained weights imply further defaults, in layers above `config/default.toml`. Any setting
//! of the user overrides them. A saved configuration has every key, so it needs none of them.
//!
//! In the order of the data: [`schema`] knows every key and its type, [`flag`] the flags of keys; `layers` reads a
//! `request` (a `layer` per source, files of a `group`, the [`alias`]es of other trainers), `launcher` adds a
//! launcher's variables, `suggestion` and `mistaken` guess what a wrong word means, `merged` merges the layers, `range`
//! and `rules` check them, `idle` names what has no effect. `resolve` runs all of this and reports every error at once.
//! Devices and data files are checked by the rooms that open them. [`grid`] expands one command line to many
//! configurations, some of their values from `draw`.

use std::collections::BTreeMap;

use kiln_data::DataConfig;
use kiln_engine::checkpoint::CheckpointConfig;
use kiln_engine::optim::{OptimConfig, ScheduleConfig};
use kiln_training::ModelConfig;
use serde::{Deserialize, Serialize};

pub mod alias;
mod draw;
pub mod flag;
pub mod grid;
mod group;
mod idle;
mod interpolation;
mod launcher;
mod layer;
mod layers;
mod merged;
mod mistaken;
mod origin;
mod own_words;
mod parallel;
mod range;
pub mod removed;
mod request;
mod resolve;
mod rules;
mod run;
pub mod schema;
pub mod suggestion;
pub mod time_limit;

pub use layers::{PLACEMENT_KEYS, SESSION_KEYS};
pub(crate) use own_words::shell_word;
pub use parallel::{ParallelConfig, ReplicasPerDevice, seconds};
pub use request::{Request, Saved, Setting};
pub use resolve::{Resolved, check, faults, resolve, sketch};
pub use run::{ProgressKind, RunConfig};

const DEFAULT_TOML: &str = include_str!("../../config/default.toml");

/// What the user's own images imply, and its name in the repository.
const PHOTOGRAPHS: (&str, &str) = (include_str!("../../config/photographs.toml"), "config/photographs.toml");

/// The complete description of an experiment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub run: RunConfig,
    pub data: DataConfig,
    pub model: ModelConfig,
    pub parallel: ParallelConfig,
    pub optim: OptimConfig,
    pub schedule: ScheduleConfig,
    pub checkpoint: CheckpointConfig,
}

/// Keys that may differ between the processes of one run.
pub(crate) const PER_PROCESS_KEYS: &[&str] = &[
    "run.threads",
    "run.output_dir",
    "run.progress",
    "run.log_every",
    "run.profile",
    "run.tensorboard",
    "run.mlflow",
    "run.serve",
    "data.dir",
    "data.cache_mb",
    "data.cache_dir",
    "data.cache_dir_mb",
    "data.prefetch_mb",
    "data.retry_seconds",
    "data.download",
    "parallel.rank",
    "parallel.gpu_ids",
    "parallel.nnodes",
    "parallel.dist_url",
    "parallel.dist_interface",
    "parallel.job_id",
    "parallel.job_secret_file",
    "checkpoint.path",
    "checkpoint.resume",
];

impl Config {
    /// The keys that must be equal on all processes of a run, with their values.
    pub fn shared(&self) -> BTreeMap<String, String> {
        let table = toml::Table::try_from(self).expect("the configuration is plain TOML values");
        let sections = table.iter().filter_map(|(section, values)| Some((section, values.as_table()?)));
        let keys = sections.flat_map(|(section, values)| {
            values.iter().map(move |(name, value)| (format!("{section}.{name}"), schema::plain(value)))
        });
        keys.filter(|(key, _)| !PER_PROCESS_KEYS.contains(&key.as_str())).collect()
    }

    /// The whole configuration as TOML; reading it back gives an equal one.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain structs of numbers, strings and lists have a TOML form")
    }
}
