//! Running statistics of replicas that do not synchronise batch-norm: those of the first, or the mean of all.

use std::time::Duration;

use burn::backend::Autodiff;
use kiln_engine::parallel::{BnStatistics, HostBackend};
use kiln_engine::state::StateDict;

use crate::reference::run::{Recorded, Recorder};
use crate::toy::{Mishap, Toy, images, plan_of, setup, train};

const CLASSES: usize = 10;
const BATCH: usize = 2;

/// The weights after every step on these images in their order.
fn states<B: HostBackend>(replicas: usize, ids: &[usize], keeps: BnStatistics, devices: Vec<usize>) -> Vec<StateDict> {
    let mut setup = setup(replicas, BATCH, 0.1);
    (setup.sync_bn, setup.devices) = (false, devices);
    let mut experiment = plan_of(&setup, images(ids, CLASSES));
    experiment.plan.bn_statistics = keeps;
    let toy = Toy::<Autodiff<B>>::new(CLASSES, Mishap::None, &B::open(0).unwrap());
    let recorder = Recorder::default();
    train::<B>(&toy, experiment, Duration::from_secs(20), recorder.clone()).unwrap();
    let Recorded { mut states, .. } = std::mem::take(&mut *recorder.0.lock().unwrap());
    states.dedup_by_key(|state| state.position.global_step);
    states.into_iter().map(|state| state.weights).collect()
}

fn values(state: &StateDict, is_wanted: impl Fn(&str) -> bool) -> Vec<f32> {
    let wanted = state.iter().filter(|(name, _)| is_wanted(name));
    wanted.filter_map(|(_, tensor)| tensor.as_f32()).flatten().copied().collect()
}

fn is_statistic(name: &str) -> bool {
    name.contains("running_")
}

#[track_caller]
fn assert_near(what: &str, ours: &[f32], theirs: &[f64], limit: f64) {
    let far = ours.iter().zip(theirs).find(|(a, b)| (f64::from(**a) - *b).abs() > limit * b.abs().max(0.1));
    assert!(far.is_none() && ours.len() == theirs.len() && !ours.is_empty(), "{what}: {far:?}");
}

/// The statistics of a replica are those of the first where it is first. The mean of two, as timm takes it at the end
/// of an epoch, is what a run keeps that takes the mean in every step.
fn mean_of_two<B: HostBackend>() {
    let ids: Vec<usize> = (0..6 * 2 * BATCH).collect();
    let swapped: Vec<usize> = ids.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    let of = |ids: &[usize], keeps| states::<B>(2, ids, keeps, vec![0]);
    let [first, second] = [&ids, &swapped].map(|ids| of(ids, BnStatistics::First).pop().unwrap());
    let means = of(&ids, BnStatistics::Mean);
    let mean = means.last().unwrap();
    let trained = |state: &StateDict| values(state, |name| !is_statistic(name));
    assert_eq!(trained(&first), trained(mean), "nothing that is trained depends on them");
    assert_eq!(first["bn1.num_batches_tracked"], mean["bn1.num_batches_tracked"]);
    let [one, other] = [&first, &second].map(|state| values(state, is_statistic));
    assert_ne!(one, other);
    let expected: Vec<f64> = one.iter().zip(&other).map(|(a, b)| (f64::from(*a) + f64::from(*b)) / 2.0).collect();
    assert_near("mean of two", &values(mean, is_statistic), &expected, 1e-6);
    assert_eq!(states::<B>(2, &ids, BnStatistics::Mean, vec![0, 1]), means, "on two devices");
}

/// In the last step one of three replicas has no sample, and no statistics.
fn mean_of_those_with_a_sample<B: HostBackend>() {
    let ids: Vec<usize> = (0..2 * 3 * BATCH + 2).collect();
    // Each replica's images in the places of the first.
    let rotated = |by: usize| -> Vec<usize> {
        ids.chunks(3).flat_map(|row| (0..row.len()).map(move |at| row[(at + by) % row.len()])).collect()
    };
    let of = |ids: &[usize], keeps| states::<B>(3, ids, keeps, vec![0]);
    let each: Vec<Vec<StateDict>> = (0..3).map(|by| of(&rotated(by), BnStatistics::First)).collect();
    let means = of(&ids, BnStatistics::Mean);
    let statistics =
        |state: &StateDict| -> Vec<f64> { values(state, is_statistic).into_iter().map(f64::from).collect() };
    for step in 1..means.len() {
        let replicas = if step + 1 == means.len() { 2 } else { 3 };
        let batch = |states: &Vec<StateDict>| -> Vec<f64> {
            let (before, after) = (statistics(&states[step - 1]), statistics(&states[step]));
            before.iter().zip(after).map(|(before, after)| (after - 0.9 * before) / 0.1).collect()
        };
        let batches: Vec<Vec<f64>> = each[..replicas].iter().map(batch).collect();
        let before = statistics(&means[step - 1]);
        let mean = |at: usize| batches.iter().map(|batch| batch[at]).sum::<f64>() / replicas as f64;
        let expected: Vec<f64> = (0..before.len()).map(|at| 0.9 * before[at] + 0.1 * mean(at)).collect();
        assert_near(&format!("step {step}"), &values(&means[step], is_statistic), &expected, 1e-5);
    }
}

on_every_backend! {
    the_mean_of_two_replicas_is_that_of_their_own_averages => || mean_of_two::<TestBackend>();
    a_replica_without_a_sample_adds_nothing_to_the_mean => || mean_of_those_with_a_sample::<TestBackend>();
}
