//! The application: its commands, settings, files and pages; each module is about one promise of the product.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test reads what it checks")]
#![allow(dead_code, reason = "the other binaries share helpers with this one")]

#[cfg(feature = "gloo")]
#[macro_use]
mod stand_in;

mod acceptance;
mod architecture;
mod browser;
#[cfg(target_os = "linux")]
mod cards;
mod checkpoint;
mod command;
mod compatibility;
mod compiled;
mod config;
mod conv;
#[cfg(all(feature = "parquet", target_os = "linux"))]
mod converted;
mod disk;
#[cfg(feature = "gloo")]
mod distributed;
mod doctor;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod driver;
mod early_stopping;
#[cfg(feature = "gloo")]
mod elastic;
#[cfg(feature = "gloo")]
mod engines;
mod exported;
mod files;
mod finding;
mod foreign;
mod guide;
mod hostile;
mod interruption;
#[cfg(all(feature = "tch", target_os = "linux"))]
mod libraries;
#[cfg(target_os = "linux")]
mod limits;
mod members;
mod metrics;
mod mlflow;
#[cfg(feature = "gloo")]
mod nccl_runs;
#[cfg(feature = "parquet")]
mod parquet_files;
mod predicted;
mod pretrained;
mod profile;
#[cfg(feature = "flex")]
mod published;
mod python;
mod recomputed_runs;
mod refusals;
#[cfg(feature = "remote")]
mod remote;
mod replicas;
mod report;
mod resume;
mod run_directory;
mod sbatch;
mod scaling;
mod schedule;
mod serve;
#[cfg(feature = "gloo")]
mod sharding;
mod skipped;
mod staged_runs;
mod storage;
mod sweep;
mod tensorboard;
#[cfg(feature = "tui")]
mod terminal;
mod trained_model;
#[cfg(feature = "flex")]
mod trainings;
mod until;
mod verify;
mod weights;
