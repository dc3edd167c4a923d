//! Sums of tensors over processes: the bits of Gloo's, wherever the order is Kiln's.

use burn::tensor::{Tensor, TensorData};
use kiln_engine::parallel::{Collective, HostBackend, Key, Operation, ReducePrecision, Share, local_group};

use super::*;
use crate::collective::{together, tree, values};
use crate::overlap::processes::trained_over;

const KEY: Key = Key { step: 0, micro_batch: 0, operation: Operation::Gradients { bucket: 0 } };

/// The replicas of a world of so many processes.
fn replicas(size: usize, processes: Vec<Processes>) -> Vec<Arc<Collective>> {
    processes.into_iter().flat_map(|processes| local_group(size, Some(processes), LIMIT)).collect()
}

fn across(size: usize, processes: usize) -> World {
    World::staged([size, 1], 0, vec![1; processes], vec![0])
}

/// The sums that all replicas get.
fn sums<B: HostBackend>(
    group: &[Arc<Collective>],
    step: usize,
    precision: ReducePrecision,
    length: usize,
) -> Vec<Vec<u32>> {
    let device = B::open(0).unwrap();
    together(group, |replica| {
        let share = TensorData::new(values(replica.rank(), 0)[..length].to_vec(), [length]);
        let share = Tensor::<B, 1>::from_data(share, &device);
        let share = Share::new(replica, vec![share]).unwrap();
        let sum = share.all_reduce(replica, Key { step, ..KEY }, precision).unwrap();
        sum.into_data().iter::<f32>().map(f32::to_bits).collect()
    })
}

/// In the tree, and in halves, whose sum is Kiln's in both modes. Vectors may be shorter than the processes are many.
fn have_the_bits_of_gloo<B: HostBackend>() {
    if stand_in().is_none() || !shows_memory::<B>() {
        return;
    }
    for (size, processes, devices) in
        [(2, 2, 1), (3, 3, 1), (5, 5, 1), (4, 2, 1), (5, 3, 1), (6, 4, 1), (7, 2, 1), (4, 2, 2), (7, 2, 2), (7, 2, 3)]
    {
        let world = across(size, processes);
        for ordered in [true, false] {
            // In its own order each rank rounds the sum of its replicas, and a device is a rank only of NCCL.
            if !ordered && devices > 1 {
                continue;
            }
            let groups = [connected(&world, ordered), with_nccl(connected(&world, ordered), &world, devices)]
                .map(|processes| replicas(size, processes));
            let precisions: &[_] =
                if ordered { &[ReducePrecision::F32, ReducePrecision::Bf16] } else { &[ReducePrecision::Bf16] };
            for (step, (precision, length)) in
                precisions.iter().flat_map(|it| [97, 2, 1].map(|length| (*it, length))).enumerate()
            {
                let [over_gloo, over_nccl] = groups.each_ref().map(|group| sums::<B>(group, step, precision, length));
                assert_eq!(
                    over_nccl, over_gloo,
                    "{size} over {processes} x {devices}, {length} values, {ordered}, {precision:?}"
                );
            }
        }
    }
}

/// In NCCL's own order: equal on all replicas, near the tree, and for two processes equal to it.
fn are_the_same_for_all_and_near_the_tree<B: HostBackend>() {
    if stand_in().is_none() || !shows_memory::<B>() {
        return;
    }
    for (size, processes) in [(2, 2), (4, 2), (5, 3), (4, 4)] {
        let world = across(size, processes);
        let group = replicas(size, with_nccl(connected(&world, false), &world, 1));
        let sums = sums::<B>(&group, 0, ReducePrecision::F32, 97);
        assert!(sums.iter().all(|sum| sum == &sums[0]));
        let shares: Vec<Vec<f32>> = (0..size).map(|rank| values(rank, 0)).collect();
        let scale = |i: usize| shares.iter().map(|share| share[i].abs()).sum::<f32>();
        let near = |(i, (a, b)): (usize, (&u32, f32))| (f32::from_bits(*a) - b).abs() <= 4.0 * f32::EPSILON * scale(i);
        assert!(sums[0].iter().zip(tree(&shares)).enumerate().all(near), "{size} over {processes}");
        if processes == 2 {
            assert_eq!(sums[0], tree(&shares).into_iter().map(f32::to_bits).collect::<Vec<_>>(), "{size}");
        }
    }
}

/// Two steps with buckets that leave during the backward pass: the weights of one process.
fn are_those_of_one_process_in_training<B: HostBackend>() {
    if stand_in().is_some() && shows_memory::<B>() {
        trained_over::<B>(|world| with_nccl(connected(world, true), world, 1));
    }
}

on_every_backend! {
    sums_over_nccl_have_the_bits_of_gloo => || have_the_bits_of_gloo::<TestBackend>();
    fast_sums_over_nccl_are_the_same_for_all => || are_the_same_for_all_and_near_the_tree::<TestBackend>();
    buckets_over_nccl_are_those_of_one_process => || are_those_of_one_process_in_training::<TestBackend>();
}
