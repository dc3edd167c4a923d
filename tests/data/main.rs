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

use kiln_data::{Augment, DataConfig, DataSplits, HostBatch, ImageSet, Normalization, SampleKey, Source};
use kiln_engine::parallel::{Shard, fetch};
use kiln_ops::images::{ByteImages, MixBy, Pixels};

/// The image of the fixtures that Python wrote.
fn image() -> Vec<u8> {
    std::fs::read(files::file("tests/fixtures/augment/image.bin")).unwrap()
}

fn key(sample: u32) -> SampleKey {
    SampleKey { seed: 3, epoch: 5, sample }
}

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
    mix: Option<MixBy>,
) -> kiln_system::Result<HostBatch> {
    let partners = mix.map(|by| (fetch(images, &shard.partners).unwrap(), by));
    kiln_data::assemble(fetch(images, &shard.ids).unwrap(), partners, augment, seed, shard)
}

/// The first view of an image as the network gets it, `[3, height, width]`.
fn normalized(augment: &Augment, image: &[u8], size: [usize; 2], key: SampleKey) -> Vec<f32> {
    let (mut bytes, Normalization { mean, std }) = (vec![0; image.len()], augment.normalization);
    let shown = vec![augment.apply_view(0, image, size, key, &mut bytes)];
    ByteImages { own: Pixels { bytes, shown }, partners: None, size, mean, std }.on_host()
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
