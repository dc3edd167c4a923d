//! The loader alone: images in memory, random crop, flip, normalisation, batches of 128.

use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group};
use kiln_data::synthetic::{NORMALIZATION, Split, draw};
use kiln_data::{Augment, DataConfig, assemble};
use kiln_engine::parallel::{Loader, Shard, fetch};

const IMAGES: usize = 10_240;
const BATCH: usize = 128;

fn batches(criterion: &mut Criterion) {
    let images = Arc::new(draw(Split::Train, IMAGES).unwrap());
    let augment = Augment::new(&DataConfig::default(), NORMALIZATION);
    let mut group = criterion.benchmark_group("loader");
    group.sample_size(20).throughput(Throughput::Elements(IMAGES as u64));
    group.bench_function("10,240 images, crop, flip, normalise", |bencher| {
        let requests = || {
            let ids = |batch: usize| (batch * BATCH..(batch + 1) * BATCH).map(|id| id as u32).collect();
            (0..IMAGES / BATCH).map(move |batch| Shard { ids: ids(batch), ..Shard::default() })
        };
        let start = || {
            let (images, augment) = (images.clone(), augment.clone());
            let read = move |shard: Shard| assemble(fetch(images.as_ref(), &shard.ids)?, None, &augment, 0, &shard);
            Loader::new(requests(), read, 2).unwrap()
        };
        bencher.iter_batched(start, Iterator::count, BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, batches);
