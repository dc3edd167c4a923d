//! The promises of replicas that are spread over processes, which are threads here.

use kiln_engine::parallel::World;

use super::*;
use crate::engines::connected;

/// The replicas of a world over so many processes, which are threads here.
fn spread(size: usize, processes: usize, timeout: Duration, ordered: bool) -> Vec<Arc<Collective>> {
    let world = World::staged([size, 1], 0, vec![1; processes], vec![0]);
    let group = |processes| local_group(size, Some(processes), timeout);
    connected(&world, ordered).into_iter().flat_map(group).collect()
}

fn one_replica_each(size: usize, timeout: Duration) -> Vec<Arc<Collective>> {
    spread(size, size, timeout, true)
}

fn blocks_of_two(size: usize, timeout: Duration) -> Vec<Arc<Collective>> {
    spread(size, size.div_ceil(2), timeout, true)
}

on_any_engine!(gloo, super::one_replica_each;);
on_any_engine!(gloo_in_blocks, super::blocks_of_two;);
#[cfg(feature = "flex")]
over_nccl! { an_abort_ends_the_waits_of_other_processes }

/// The fast mode adds up in an order of its own: equal on all replicas, and near the sum.
#[test]
fn fast_sums_are_the_same_for_all_and_near_the_tree() {
    for (size, processes) in [(2, 2), (4, 2), (5, 3), (4, 4)] {
        let shares: Vec<Vec<f32>> = (0..size).map(|rank| values(rank, 0)).collect();
        let group = spread(size, processes, PATIENT, false);
        let sums = together(&group, |replica| {
            sum(replica, key(0, Operation::Gradients { bucket: 0 }), values(replica.rank(), 0), false).unwrap()
        });
        assert!(sums.iter().all(|sum| sum == &sums[0]));
        let scale = |i: usize| shares.iter().map(|share| share[i].abs()).sum::<f32>();
        let near = |(i, (a, b)): (usize, (&f32, f32))| (a - b).abs() <= 4.0 * f32::EPSILON * scale(i);
        assert!(sums[0].iter().zip(tree(&shares)).enumerate().all(near), "{size} over {processes}");
    }
}

/// Shares are rounded, and their sum; what is added up is f32.
#[test]
fn fast_sums_of_halves_are_rounded_once() {
    for (size, processes) in [(2, 2), (5, 5), (6, 3)] {
        let rounded = |values: &[f32]| -> Vec<bf16> { values.iter().map(|value| bf16::from_f32(*value)).collect() };
        let full = |halves: Vec<bf16>| -> Vec<f32> { halves.into_iter().map(bf16::to_f32).collect() };
        let group = spread(size, processes, PATIENT, false);
        let sums = together(&group, |replica| {
            let share = values(replica.rank(), 3);
            sum(replica, key(0, Operation::Gradients { bucket: 0 }), share, true).unwrap()
        });
        // Replicas of a process are added up first, as they are.
        let each = size / processes;
        let of = |process: usize| {
            let shares: Vec<_> = (0..each).map(|it| full(rounded(&values(process * each + it, 3)))).collect();
            full(rounded(&tree(&shares)))
        };
        let add = |sum: Vec<f32>, share: Vec<f32>| sum.into_iter().zip(share).map(|(a, b)| a + b).collect();
        let exact = (1..processes).map(of).fold(of(0), add);
        assert_eq!(sums, vec![full(rounded(&exact)); size], "{size} over {processes}");
    }
}

/// A replica that fails wakes those of other processes at once, though the limit is far.
#[test]
fn an_abort_ends_the_waits_of_other_processes() {
    let start = Instant::now();
    let verdicts = together(&spread(3, 3, PATIENT, true), |replica| {
        if replica.rank() == 1 {
            replica.abort(Broken::Replica("replica 1 fell".into()));
        }
        sum(replica, key(0, Operation::Gradients { bucket: 0 }), vec![1.0; 1000], false).unwrap_err()
    });
    assert!(start.elapsed() < PATIENT / 2, "nobody waits for the limit");
    assert_eq!(verdicts[1], Broken::Replica("replica 1 fell".into()));
    assert!(matches!((&verdicts[0], &verdicts[2]), (Broken::Peer(_), Broken::Peer(_))), "{verdicts:?}");
}

/// Who is silent is noticed after the limit; ten times as long in the first step.
#[test]
fn a_silent_process_is_noticed() {
    let group = spread(2, 2, Duration::from_millis(200), true);
    together(&group, |replica| replica.all_gather(key(0, Operation::Counts), vec![1.0], |all| all).unwrap());
    let gradients = key(1, Operation::Gradients { bucket: 0 });
    let Err(Broken::Peer(text)) = sum(&group[0], gradients, vec![1.0], false) else { panic!("nobody was missed") };
    assert!(text.contains("Timed out waiting 200ms"), "{text}");
}
