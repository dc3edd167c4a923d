//! Batches that do not divide evenly: every sample counts once and equally, and nobody waits for a replica that has
//! none.

use kiln_engine::parallel::HostBackend;
use kiln_engine::state::{HostTensor, StateDict};
use kiln_training::Stem;

use crate::reference::run::Setup;
use crate::small::{distance, last_gradient, setup};

#[track_caller]
fn assert_close(ours: &StateDict, theirs: &StateDict) {
    let distance = distance(ours, theirs);
    assert!(distance < 1e-4, "{distance:.1e}");
}

/// 103 samples in batches of 32: the last step has shards of 2, 2, 2 and 1.
pub fn uneven<B: HostBackend>() {
    let last = |setup| last_gradient::<B>(Stem::Cifar, &setup, 0..103);
    assert_close(&last(setup(4, 8, 0.0)), &last(setup(1, 32, 0.0)));
}

/// 33 samples in batches of 32: the last step has a single sample, and three replicas have none.
pub fn a_single_sample<B: HostBackend>(sync_bn: bool) {
    let four = Setup { sync_bn, ..setup(4, 8, 0.0) };
    let last = |setup| last_gradient::<B>(Stem::Cifar, &setup, 0..33);
    assert_close(&last(four), &last(setup(1, 32, 0.0)));
}

/// 90 samples in groups of three batches of 16: the last group has 16, 16 and 10. Of so many images a ReLU of the CIFAR
/// stem's large maps has an input so near to zero that rounding changes its sign, and with it the gradient.
pub fn a_partial_group<B: HostBackend>() {
    let last = |setup, ids| last_gradient::<B>(Stem::Imagenet, &setup, ids);
    let grouped = |replicas: usize| Setup { accumulation_steps: 3, ..setup(replicas, 16 / replicas, 0.0) };
    let batches = [48..64, 64..80, 80..90].map(|ids| (ids.len(), last(setup(1, 16, 0.0), ids)));
    let mean =
        batches.into_iter().map(|(samples, gradient)| scaled(gradient, samples as f32 / 42.0)).reduce(sum).unwrap();
    for replicas in [1, 2, 4] {
        assert_close(&last(grouped(replicas), 0..90), &mean);
    }
}

fn scaled(mut gradient: StateDict, factor: f32) -> StateDict {
    for tensor in gradient.values_mut() {
        if let HostTensor::F32 { data, .. } = tensor {
            data.iter_mut().for_each(|value| *value *= factor);
        }
    }
    gradient
}

fn sum(mut sum: StateDict, other: StateDict) -> StateDict {
    for (tensor, other) in sum.values_mut().zip(other.values()) {
        if let HostTensor::F32 { data, .. } = tensor {
            data.iter_mut().zip(other.as_f32().unwrap()).for_each(|(value, other)| *value += other);
        }
    }
    sum
}

on_every_backend! {
    uneven_shards_weigh_every_sample_alike => || uneven::<TestBackend>();
    a_batch_of_one_sample_is_that_of_one_process => || a_single_sample::<TestBackend>(true);
    a_batch_of_one_sample_needs_no_synchronised_statistics => || a_single_sample::<TestBackend>(false);
    a_short_last_group_is_scaled_by_what_it_holds => || a_partial_group::<TestBackend>();
}
