//! Everything the user can choose, in one value, and the way from what was typed to that value.
//!
//! [`Config`] composes the sections that the rooms declare beside their code; it is what runs: every value present and
//! checked, printable as TOML. [`resolve()`] builds it from layers, of which the later win:
//!
//! ```text
//! code defaults < config/default.toml < --config FILE < groups (optim=sgd) < TRAIN__SECTION__KEY < KEY=VALUE < flags
//! ```
//!
//! Read on in the order of the data: [`schema`] knows every key and its type, [`flag`] the flags that stand for keys;
//! `layers` reads a `request` (a `layer` for each place, files of a `group`, and what [`alias`] knows to be spelled as
//! other trainers do), `launcher` fills in what the variables of a launcher say, `suggestion` guesses what was meant,
//! `merged` makes one of them all, `range` and `rules` say what is allowed, and `resolve` does all that, collecting
//! every complaint before it gives up. Whether a device or a file of data exists is left to the rooms that open it.
//! [`grid`] makes many configurations out of one command line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::checkpoint::CheckpointConfig;
use crate::data::DataConfig;
use crate::model::ModelConfig;
use crate::optim::{OptimConfig, ScheduleConfig};
use crate::parallel::ParallelConfig;

pub mod alias;
pub mod flag;
pub mod grid;
mod group;
mod launcher;
mod layer;
mod layers;
mod merged;
mod range;
mod request;
mod resolve;
mod rules;
mod run;
pub mod schema;
pub mod suggestion;
pub mod time_limit;

pub use layers::OF_A_SESSION;
pub use request::{Request, Saved, Setting};
pub use resolve::{Resolved, faults, resolve, sketch};
pub use run::{ProgressKind, RunConfig};

/// The documented defaults, as they are in the repository.
const DEFAULT_TOML: &str = include_str!("../../config/default.toml");

/// One experiment, completely described.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long, how reproducible, how talkative.
    pub run: RunConfig,
    /// Which images, and how they are altered.
    pub data: DataConfig,
    /// The network.
    pub model: ModelConfig,
    /// Replicas and devices.
    pub parallel: ParallelConfig,
    /// The update rule.
    pub optim: OptimConfig,
    /// The learning rate over time.
    pub schedule: ScheduleConfig,
    /// What is kept, and where a run starts from.
    pub checkpoint: CheckpointConfig,
}

/// What may differ between the processes of one run; everything else is the experiment's.
const OWN: &[&str] = &[
    "run.threads",
    "run.output_dir",
    "run.progress",
    "run.log_every",
    "run.profile",
    "run.tensorboard",
    "data.dir",
    "data.cache_mb",
    "data.download",
    "parallel.rank",
    "parallel.gpu_ids",
    "parallel.nnodes",
    "parallel.dist_url",
    "parallel.dist_interface",
    "parallel.job_id",
    "parallel.job_secret_file",
    "parallel.tls_cert",
    "parallel.tls_key",
    "parallel.tls_ca",
    "checkpoint.path",
    "checkpoint.resume",
];

impl Config {
    /// What must be the same on all processes of a run: every other key with its value.
    pub fn shared(&self) -> BTreeMap<String, String> {
        let table = toml::Table::try_from(self).expect("the configuration is plain TOML values");
        let sections = table.iter().filter_map(|(section, values)| Some((section, values.as_table()?)));
        let keys = sections.flat_map(|(section, values)| {
            values.iter().map(move |(name, value)| (format!("{section}.{name}"), schema::plain(value)))
        });
        keys.filter(|(key, _)| !OWN.contains(&key.as_str())).collect()
    }

    /// The whole configuration as TOML; reading it back gives an equal one.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain structs of numbers, strings and lists have a TOML form")
    }
}
