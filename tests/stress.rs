//! The race in Burn 0.21's autodiff graph (tracel-ai/burn #5573) stays shut: no replica ever loses a gradient, or gets
//! a wrong one, because another one is at work on the graph.
//!
//! The weights stand still, so every shard has one gradient: that of a run on a single thread.

use std::collections::BTreeMap;
use std::time::Duration;

use burn::backend::Autodiff;
use kiln_engine::parallel::HostBackend;

use crate::reference::run::{Recorder, Setup};
use crate::toy::{Mishap, Toy, first_pixels, images, plan_of, setup, train};

const STEPS: usize = 500;
/// A step of several micro-batches would meet the leaves of the first one again, were it not for the fork.
const MICRO_BATCHES: usize = 5;
const BATCH: usize = 2;

/// The gradients of every training step, by the first pixels of its shard.
type Gradients = BTreeMap<Vec<u32>, Vec<Vec<f32>>>;

fn gradients<B: HostBackend>(setup: &Setup, ids: &[usize]) -> Gradients {
    let toy = Toy::<Autodiff<B>>::new(10, Mishap::None, &B::open(0).unwrap());
    let mut experiment = plan_of(setup, images(ids, 10));
    experiment.plan.save_every_steps = 0;
    train::<B>(&toy, experiment, Duration::from_secs(60), Recorder::default()).unwrap();
    let calls: Gradients = toy.calls().into_iter().map(|call| (call.shard, call.gradients)).collect();
    assert_eq!(calls.len() * setup.batch_size, ids.len(), "a step for every shard");
    calls
}

/// The order in which a single replica meets the shards of `replicas` one after the other.
fn shard_by_shard(ids: &[usize], replicas: usize) -> Vec<usize> {
    let shard = |batch: &[usize], replica| batch.iter().skip(replica).step_by(replicas).copied().collect::<Vec<_>>();
    let batches = ids.chunks(replicas * BATCH);
    batches.flat_map(|batch| (0..replicas).flat_map(move |replica| shard(batch, replica))).collect()
}

/// The largest difference, relative to the largest gradient of a parameter.
fn distance(ours: &[Vec<f32>], theirs: &[Vec<f32>]) -> f32 {
    let largest = |values: &[f32]| values.iter().fold(0.0f32, |max, value| max.max(value.abs()));
    let pairs = ours.iter().zip(theirs).map(|(ours, theirs)| {
        assert_eq!(ours.len(), theirs.len(), "a gradient is lost");
        let difference: Vec<f32> = ours.iter().zip(theirs).map(|(a, b)| a - b).collect();
        largest(&difference) / largest(theirs).max(1e-3)
    });
    pairs.fold(0.0, f32::max)
}

/// Each replica's gradient is that of its shard alone.
pub fn with_statistics_of_their_own<B: HostBackend>() {
    for replicas in [2, 3, 4] {
        let ids = Vec::from_iter(0..STEPS * replicas * BATCH);
        let mut setup = setup(replicas, BATCH, 0.0);
        (setup.sync_bn, setup.accumulation_steps) = (false, MICRO_BATCHES);
        let ours = gradients::<B>(&setup, &ids);
        (setup.world_size, setup.devices, setup.accumulation_steps) = (1, vec![0], MICRO_BATCHES * replicas);
        for (shard, theirs) in gradients::<B>(&setup, &shard_by_shard(&ids, replicas)) {
            let distance = distance(&ours[&shard], &theirs);
            assert!(distance < 1e-5, "{replicas} replicas: {distance:.1e}");
        }
    }
}

/// The replicas' gradients add up to that of the whole batch.
pub fn with_synchronised_statistics<B: HostBackend>() {
    for replicas in [2, 3, 4] {
        let ids = Vec::from_iter(0..STEPS * replicas * BATCH);
        let ours = gradients::<B>(&setup(replicas, BATCH, 0.0), &ids);
        let theirs = gradients::<B>(&setup(1, replicas * BATCH, 0.0), &ids);
        for batch in ids.chunks(replicas * BATCH) {
            let sum = (0..replicas).map(|replica| ours[&first_pixels(batch[replica])].clone()).reduce(add).unwrap();
            let distance = distance(&sum, &theirs[&first_pixels(batch[0])]);
            assert!(distance < 1e-4, "{replicas} replicas: {distance:.1e}");
        }
    }
}

fn add(sum: Vec<Vec<f32>>, share: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
    let pairs = sum.into_iter().zip(share);
    pairs.map(|(sum, share)| sum.into_iter().zip(share).map(|(a, b)| a + b).collect()).collect()
}

on_every_backend! {
    no_gradient_is_lost_or_wrong_with_statistics_of_each_replica => || with_statistics_of_their_own::<TestBackend>();
    no_gradient_is_lost_or_wrong_with_synchronised_statistics => || with_synchronised_statistics::<TestBackend>();
}
