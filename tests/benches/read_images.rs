//! Reads the training images of a data set once, with random resized crops to SIDE pixels and flips, in batches of 128,
//! and prints images per second: `read_images SOURCE DIR THREADS SIDE whole|part|scaled`. `pictures.py` holds it
//! against torchvision.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

/// That of `train`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[path = "../../src/allocator.rs"]
mod allocator;

use std::time::Instant;

use kiln_data::{Augment, DataConfig, Decode, Source, assemble, load};
use kiln_engine::parallel::{Loader, Shard, fetch};

const BATCH: usize = 128;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, source, dir, threads, side, decode] = &arguments[..] else {
        panic!("read_images SOURCE DIR THREADS SIDE whole|part|scaled")
    };
    rayon::ThreadPoolBuilder::new().num_threads(threads.parse().unwrap()).build_global().unwrap();
    let source = match source.as_str() {
        "folder" => Source::Folder,
        "webdataset" => Source::Webdataset,
        _ => Source::Pack,
    };
    let decode = match decode.as_str() {
        "part" => Decode::Part,
        "scaled" => Decode::Scaled,
        _ => Decode::Whole,
    };
    let (dir, image_size) = (dir.into(), side.parse().unwrap());
    let config = DataConfig { source, dir, image_size, decode, resized_crop: 0.08, ..DataConfig::default() };
    let start = Instant::now();
    let splits = load(&config, &|_| {}).unwrap();
    let opened = start.elapsed().as_secs_f64();
    let augment = Augment::new(&config, splits.normalization);
    let images = splits.train.clone();
    let ids: Vec<u32> = (0..images.len() as u32).map(|id| id.wrapping_mul(7919) % images.len() as u32).collect();
    let shards: Vec<Shard> = ids.chunks(BATCH).map(|ids| Shard { ids: ids.to_vec(), ..Shard::default() }).collect();
    let read = move |shard: Shard| assemble(fetch(images.as_ref(), &shard.ids)?, None, &augment, 0, &shard);
    let start = Instant::now();
    let mut first = 0.0;
    let read: usize = Loader::new(shards.into_iter(), read, 2)
        .unwrap()
        .map(|batch| {
            if first == 0.0 {
                first = opened + start.elapsed().as_secs_f64();
            }
            batch.unwrap().ids.len()
        })
        .sum();
    let rate = read as f64 / start.elapsed().as_secs_f64();
    println!("{{\"open_s\": {opened:.3}, \"first_batch_s\": {first:.3}, \"images_per_s\": {rate:.1}}}");
}
