//! One integration binary; each module is about one promise of the product.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test reads what it checks")]

mod acceptance;
mod architecture;
#[macro_use]
mod backends;
mod browser;
#[cfg(target_os = "linux")]
mod cards;
mod checkpoint;
mod collective;
mod command;
mod compatibility;
mod config;
mod conv;
#[cfg(all(feature = "parquet", target_os = "linux"))]
mod converted;
mod data;
#[cfg(feature = "wgpu")]
mod device_calls;
mod devices;
mod disk;
#[cfg(feature = "gloo")]
mod distributed;
mod divergence;
mod doctor;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod driver;
mod early_stopping;
#[cfg(feature = "gloo")]
mod elastic;
#[cfg(feature = "gloo")]
mod engines;
mod exported;
mod failure;
mod files;
mod finding;
mod foreign;
mod freeze;
mod guide;
mod hostile;
mod interruption;
#[cfg(all(feature = "tch", target_os = "linux"))]
mod libraries;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(feature = "gloo")]
mod mesh;
mod metrics;
mod mixing;
#[cfg(feature = "gloo")]
mod nccl;
mod ops;
mod optim;
mod overlap;
mod own_model;
mod parity;
mod placement;
mod planning;
mod precision;
mod predicted;
mod presets;
mod pretrained;
mod probe;
mod profile;
mod python;
mod reference;
mod refusals;
#[cfg(feature = "remote")]
mod remote;
mod report;
mod resume;
mod run_directory;
mod saving;
mod sbatch;
mod scaling;
mod schedule;
mod sharding;
mod shards;
mod small;
mod stages;
mod state;
mod storage;
mod stress;
mod sweep;
mod tensorboard;
#[cfg(feature = "tui")]
mod terminal;
mod toy;
mod trained_model;
mod validation;
mod verify;
mod weights;
