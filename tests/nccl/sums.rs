//! Sums of tensors over processes: the bits of Gloo's, wherever the order is Kiln's.

use burn::tensor::{FloatDType, Tensor, TensorData, bf16};
use kiln::parallel::{Collective, HostBackend, Key, Operation, ReducePrecision, local_group, sum_across};

use super::*;
use crate::collective::{together, tree, values};
use crate::overlap::processes::trained_over;

const KEY: Key = Key { step: 0, micro_batch: 0, operation: Operation::Gradients { bucket: 0 } };

/// The replicas of a world of so many processes.
fn replicas(size: usize, processes: Vec<Processes>) -> Vec<Arc<Collective>> {
    processes.into_iter().flat_map(|processes| local_group(size, Some(processes), LIMIT)).collect()
}

fn across(size: usize, processes: usize) -> World {
    World::across(size, 0, vec![1; processes], vec![0])
}

/// The sums that all replicas get over NCCL.
fn sums<B: HostBackend>(
    world: &World,
    ordered: bool,
    precision: ReducePrecision,
    length: usize,
    devices: usize,
) -> Vec<Vec<u32>> {
    let device = B::open(0).unwrap();
    let group = replicas(world.size, with_nccl(connected(world, ordered), world, devices));
    together(&group, |replica| {
        let share = TensorData::new(values(replica.rank(), 0)[..length].to_vec(), [length]);
        let share = Tensor::<B, 1>::from_data(share, &device);
        let ready = replica.devices().unwrap().mark().unwrap();
        let sum = sum_across(replica, KEY, share, ready, precision).unwrap();
        sum.into_data().iter::<f32>().map(f32::to_bits).collect()
    })
}

/// The same over Gloo.
fn over_gloo(world: &World, ordered: bool, precision: ReducePrecision, length: usize) -> Vec<Vec<u32>> {
    together(&replicas(world.size, connected(world, ordered)), |replica| {
        let share = values(replica.rank(), 0)[..length].to_vec();
        let sum = match precision {
            ReducePrecision::F32 => replica.all_reduce(KEY, share),
            ReducePrecision::Bf16 => replica.all_reduce_bf16(KEY, share),
        };
        sum.unwrap().iter().map(|value| value.to_bits()).collect()
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
        for length in [97, 2, 1] {
            for (ordered, precision) in
                [(true, ReducePrecision::F32), (true, ReducePrecision::Bf16), (false, ReducePrecision::Bf16)]
            {
                if precision == ReducePrecision::Bf16 && !rounds_to_nearest::<B>() {
                    continue;
                }
                if !ordered && devices > 1 {
                    // The sums of devices are rounded, where Gloo's are those of processes.
                    continue;
                }
                let sums = sums::<B>(&world, ordered, precision, length, devices);
                let expected = over_gloo(&world, ordered, precision, length);
                assert_eq!(
                    sums, expected,
                    "{size} over {processes} x {devices}, {length} values, {ordered}, {precision:?}"
                );
            }
        }
    }
}

/// Whether the backend's cast to bf16 rounds to the nearest value, as Gloo's shares are rounded. Flex's goes by f64, and
/// loses the bits that decide between two values.
fn rounds_to_nearest<B: HostBackend>() -> bool {
    let exact = |value: &f32| bf16::from_f32(*value).to_f32();
    let all: Vec<f32> = (0..8).flat_map(|rank| values(rank, 0)).collect();
    let device = B::open(0).unwrap();
    let cast = Tensor::<B, 1>::from_data(TensorData::new(all.clone(), [all.len()]), &device).cast(FloatDType::BF16);
    let rounds = cast.cast(FloatDType::F32).into_data().iter::<f32>().eq(all.iter().map(exact));
    if !rounds {
        skip("this backend does not round to the nearest bf16");
    }
    rounds
}

/// In NCCL's own order: equal on all replicas, near the tree, and for two processes equal to it.
fn are_the_same_for_all_and_near_the_tree<B: HostBackend>() {
    if stand_in().is_none() || !shows_memory::<B>() {
        return;
    }
    for (size, processes) in [(2, 2), (4, 2), (5, 3), (4, 4)] {
        let sums = sums::<B>(&across(size, processes), false, ReducePrecision::F32, 97, 1);
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
