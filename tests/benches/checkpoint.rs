//! A checkpoint of ResNet-18's size, written so that a loss of power cannot halve it, and read with its checksums.

use criterion::{Criterion, Throughput, criterion_group};
use kiln_engine::checkpoint::{Keep, Snapshot, Store, Which};
use tempfile::tempdir;

/// Weights and momentum of ResNet-18.
const BYTES: usize = 2 * 4 * 11_173_962;

fn save_and_load(criterion: &mut Criterion) {
    let directory = tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    let mut group = criterion.benchmark_group("checkpoint of 89 MB");
    group.sample_size(10).throughput(Throughput::Bytes(BYTES as u64));
    let snapshot = |step| Snapshot {
        step,
        epoch: 1,
        accuracy: None,
        files: vec![("model.safetensors".into(), vec![7; BYTES].into())],
    };
    let mut step = 0;
    group.bench_function("save", |bencher| {
        bencher.iter(|| {
            step += 1;
            store.save(&snapshot(step), false, Keep { last: 1, best: 1 }).unwrap()
        });
    });
    group.bench_function("load", |bencher| bencher.iter(|| store.load(Which::Latest, &mut |_| ()).unwrap()));
    group.finish();
}

criterion_group!(benches, save_and_load);
