//! The data room: every sample once, the same numbers on any set of devices, and no bad input that is not explained.

mod augment;
mod cifar;
mod color_jitter;
mod download;
mod erase;
mod folder;
mod framing;
mod index;
mod jpeg;
mod loader;
mod mixing;
mod modes;
mod pack;
#[cfg(feature = "parquet")]
pub mod parquet;
mod rand_augment;
mod repeats;
mod resize;
mod sampler;
pub mod shards;
mod synthetic;

use std::path::{Path, PathBuf};

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

/// A file or folder of the repository.
fn repository(path: &str) -> PathBuf {
    crate::files::file(path)
}

/// Fails unless `message` contains every one of `parts`.
#[track_caller]
fn assert_names(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "'{message}' does not name '{part}'");
    }
}
