//! The reference numbers of PyTorch, met on every backend.

use kiln_training::Stem;

use crate::reference;

on_every_backend! {
    logits_at_evaluation_are_those_of_torch => || reference::logits_at_evaluation::<TestBackend>();
    training_logits_and_buffers_are_those_of_torch => || reference::training_forward::<TestBackend>();
    losses_their_gradients_and_ranks_are_those_of_torch => || reference::losses::<TestBackend>();
    every_gradient_is_that_of_torch_for_every_world_size => || reference::gradients::<TestBackend>();
    every_gradient_of_a_wide_network_is_as_near_to_f64_as_ten_times_that_of_torch
        => || reference::wide::gradients::<TestBackend>();
    trajectories_with_the_cifar_stem_follow_torch => || reference::trajectories::<TestBackend>(Stem::Cifar);
    trajectories_with_the_imagenet_stem_follow_torch => || reference::trajectories::<TestBackend>(Stem::Imagenet);
    #[cfg(feature = "gloo")]
    processes_host_one_experiment_with_the_cifar_stem
        => || reference::processes::are_one_experiment::<TestBackend>(Stem::Cifar);
    #[cfg(feature = "gloo")]
    processes_host_one_experiment_with_the_imagenet_stem
        => || reference::processes::are_one_experiment::<TestBackend>(Stem::Imagenet);
    bottlenecks_learn_as_in_torch => || reference::bottleneck::follow::<TestBackend>(1, 64);
    bottlenecks_with_groups_learn_as_in_torch => || reference::bottleneck::follow::<TestBackend>(4, 16);
    weights_keep_every_bit_under_the_names_of_torchvision => || reference::weights_round_trip::<TestBackend>();
}

#[cfg(all(feature = "gloo", feature = "tch"))]
mod over_nccl {
    use super::*;

    on_backend! { "tch" tch burn::backend::LibTorch<f32>:
        processes_train_the_same_experiment => || crate::stand_in::over_nccl_on::<TestBackend>(
            || reference::processes::are_one_experiment::<TestBackend>(Stem::Cifar));
    }
}
