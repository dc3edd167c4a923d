//! The gradient all-reduce, in memory and over Gloo: a vector of ResNet-18's size, summed over replicas.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use burn::backend::Flex;
use burn::tensor::Tensor;
use criterion::{Criterion, Throughput, criterion_group};
use kiln_engine::parallel::local_group;
use kiln_engine::parallel::{Collective, Key, Operation, ReducePrecision, Share};

/// Parameters of ResNet-18 with ten classes.
const LENGTH: usize = 11_173_962;
const LIMIT: Duration = Duration::from_secs(60);

fn sums(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all-reduce of 11 M values");
    group.sample_size(10).throughput(Throughput::Bytes(4 * LENGTH as u64));
    for replicas in [2, 4] {
        group.bench_function(format!("{replicas} replicas"), |bencher| {
            bencher.iter_custom(|rounds| time(in_memory(replicas), rounds as usize));
        });
    }
    #[cfg(feature = "gloo")]
    for (processes, ordered) in [(2, false), (2, true), (4, false), (4, true)] {
        let order = if ordered { ", in the order of the tree" } else { "" };
        group.bench_function(format!("{processes} processes over Gloo{order}"), |bencher| {
            bencher.iter_custom(|rounds| time(over_gloo(processes, ordered), rounds as usize));
        });
    }
    group.finish();
}

/// Processes of one replica each, which are threads here; their messages go through the machine's network all the same.
#[cfg(feature = "gloo")]
fn over_gloo(processes: usize, ordered: bool) -> Vec<Arc<Collective>> {
    let world = kiln_engine::parallel::World::staged([processes, 1], 0, vec![1; processes], vec![0]);
    let group = |others| local_group(processes, Some(others), LIMIT);
    super::engines::connected(&world, ordered).into_iter().flat_map(group).collect()
}

fn in_memory(replicas: usize) -> Vec<Arc<Collective>> {
    local_group(replicas, None, LIMIT)
}

/// The time of so many rounds. Each sum is the share of the next round, in the same memory, as gradients are summed
/// where the backward pass has left them.
fn time(handles: Vec<Arc<Collective>>, rounds: usize) -> Duration {
    let begin = Barrier::new(handles.len());
    let sum = |replica: Arc<Collective>| {
        let mut share = Tensor::<Flex, 1>::ones([LENGTH], &Default::default());
        begin.wait();
        let start = Instant::now();
        for step in 0..rounds {
            let key = Key { step, micro_batch: 0, operation: Operation::Gradients { bucket: 0 } };
            let shares = Share::new(&replica, vec![share]).unwrap();
            share = shares.all_reduce(&replica, key, ReducePrecision::F32).unwrap();
        }
        start.elapsed()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = handles.into_iter().map(|replica| scope.spawn(|| sum(replica))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap_or_default()
    })
}

criterion_group!(benches, sums);
