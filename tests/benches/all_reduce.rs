//! The gradient all-reduce of the in-process engine: a vector of ResNet-18's size, summed over replicas.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group};
use kiln::parallel::collective::{Collective, Key, Operation};
use kiln::parallel::local_group;

/// Parameters of ResNet-18 with ten classes.
const LENGTH: usize = 11_173_962;

fn sums(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all-reduce of 11 M values");
    group.sample_size(10).throughput(Throughput::Bytes(4 * LENGTH as u64));
    for replicas in [2, 4] {
        group.bench_function(format!("{replicas} replicas"), |bencher| {
            bencher.iter_custom(|rounds| rounds_of(replicas, rounds as usize));
        });
    }
    group.finish();
}

/// The time of so many rounds, with the copy into the buffer that every round needs.
fn rounds_of(replicas: usize, rounds: usize) -> Duration {
    let handles = local_group(replicas, Duration::from_secs(60));
    let values = vec![1.0_f32; LENGTH];
    let start = Instant::now();
    std::thread::scope(|scope| {
        for replica in handles {
            let values = &values;
            scope.spawn(move || {
                for step in 0..rounds {
                    let mut share = replica.buffer();
                    share.extend_from_slice(values);
                    let key = Key { step, micro_batch: 0, operation: Operation::Gradients };
                    replica.recycle(replica.all_reduce(key, share).unwrap());
                }
            });
        }
    });
    start.elapsed()
}

criterion_group!(benches, sums);
