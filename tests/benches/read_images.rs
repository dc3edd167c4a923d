//! Reads the training images of a data set once, with random resized crops to 224 pixels and flips, in batches of 128, and
//! prints images per second: `read_images SOURCE DIR THREADS`. `pictures.py` holds it against torchvision.

#![allow(missing_docs, reason = "a program for one script")]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use std::time::Instant;

use kiln::data::{Augment, DataConfig, Source, assemble, load};
use kiln::parallel::{Loader, Shard, fetch};

const BATCH: usize = 128;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, source, dir, threads] = &arguments[..] else { panic!("read_images SOURCE DIR THREADS") };
    rayon::ThreadPoolBuilder::new().num_threads(threads.parse().unwrap()).build_global().unwrap();
    let source = match source.as_str() {
        "folder" => Source::Folder,
        "webdataset" => Source::Webdataset,
        "parquet" => Source::Parquet,
        _ => Source::Pack,
    };
    let config = DataConfig { source, dir: dir.into(), image_size: 224, resized_crop: 0.08, ..DataConfig::default() };
    let start = Instant::now();
    let splits = load(&config, &|_| {}).unwrap();
    let opened = start.elapsed().as_secs_f64();
    let augment = Augment::new(&config, splits.normalization);
    let images = splits.train.clone();
    let ids: Vec<u32> = (0..images.len() as u32).map(|id| id.wrapping_mul(7919) % images.len() as u32).collect();
    let shards: Vec<Shard> = ids.chunks(BATCH).map(|ids| Shard { ids: ids.to_vec(), ..Shard::default() }).collect();
    let read = move |shard: Shard| assemble(fetch(images.as_ref(), &shard.ids)?, None, &augment, 0, &shard);
    let start = Instant::now();
    let read: usize = Loader::new(shards.into_iter(), read, 2).unwrap().map(|batch| batch.unwrap().len()).sum();
    println!("{{\"open_s\": {opened:.3}, \"images_per_s\": {:.1}}}", read as f64 / start.elapsed().as_secs_f64());
}
