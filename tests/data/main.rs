//! Data sets: every sample once, the same numbers on any set of devices, and no bad input that is not explained.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test reads what it checks")]

mod augment;
mod auto_augment;
mod cifar;
mod color_jitter;
mod download;
mod erase;
#[path = "../files.rs"]
mod files;
mod folder;
mod framing;
mod index;
mod jpeg;
mod loader;
mod mixing;
mod modes;
mod pack;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
#[path = "../parquet_files.rs"]
mod parquet_files;
#[path = "../python.rs"]
mod python;
mod rand_augment;
mod repeats;
mod resize;
mod shards;
#[path = "../skipped.rs"]
mod skipped;
mod synthetic;
mod views;

use std::path::Path;

use kiln_data::{Augment, DataConfig, DataSplits, HostBatch, ImageSet, Mix, Source};
use kiln_engine::parallel::{Shard, fetch};

/// Loads without watching the progress.
fn load(config: &DataConfig) -> kiln_system::Result<DataSplits> {
    kiln_data::load(config, &|_| {})
}

/// The batch of `shard`, mixed as `mix` says.
fn assemble(
    images: &ImageSet,
    augment: &Augment,
    seed: u64,
    shard: &Shard,
    mix: Option<Mix>,
) -> kiln_system::Result<HostBatch> {
    let partners = mix.map(|mix| (fetch(images, &shard.partners).unwrap(), mix));
    kiln_data::assemble(fetch(images, &shard.ids).unwrap(), partners, augment, seed, shard)
}

/// The one line with which loading `source` from `dir` fails.
fn complaint(source: Source, dir: &Path) -> String {
    let config = DataConfig { source, dir: dir.to_path_buf(), ..DataConfig::default() };
    let message = load(&config).expect_err("loading should fail").to_string();
    assert_eq!(message.lines().count(), 1, "more than one line: {message}");
    message
}

/// Fails unless `message` contains every one of `parts`.
#[track_caller]
fn assert_names(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "'{message}' does not name '{part}'");
    }
}
