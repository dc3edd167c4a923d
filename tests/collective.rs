//! What every engine of collectives promises. The suite takes the engine's constructor; an engine joins at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::{Tensor, TensorData, bf16};
use kiln_engine::parallel::{Broken, Collective, Key, Operation};
use kiln_engine::parallel::{HostBackend, ReducePrecision, Share, all_gather, local_group, reduce_scatter};
use kiln_ops::statistics::Direction;

/// The handles of a group of so many replicas with this timeout.
type Make = fn(usize, Duration) -> Vec<Arc<Collective>>;

/// Long enough for any test that is not about time.
const PATIENT: Duration = Duration::from_secs(20);
const ROUNDS: usize = 40;

fn key(step: usize, operation: Operation) -> Key {
    Key { step, micro_batch: 0, operation }
}

/// Lets every replica of a group do `work` on a thread of its own; the results in the order of ranks.
pub fn together<T: Send>(group: &[Arc<Collective>], work: impl Fn(&Collective) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = group.iter().map(|replica| scope.spawn(move || work(replica.as_ref()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[cfg(feature = "flex")]
type Host = burn::backend::Flex;
#[cfg(not(feature = "flex"))]
type Host = burn::backend::LibTorch;

/// The sum over all replicas, of shares that are sent in bf16 if `halves`.
fn sum(replica: &Collective, key: Key, share: Vec<f32>, halves: bool) -> Result<Vec<f32>, Broken> {
    let precision = if halves { ReducePrecision::Bf16 } else { ReducePrecision::F32 };
    let length = share.len();
    let share = Tensor::<Host, 1>::from_data(TensorData::new(share, [length]), &Default::default());
    let sum = Share::new(replica, vec![share])?.all_reduce(replica, key, precision)?;
    Ok(sum.into_data().into_vec().unwrap())
}

/// Replicas arrive in an order that changes from round to round.
fn dawdle(rank: usize, round: usize) {
    let turns = (rank * 7 + round * 13) % 11;
    (0..turns * turns).for_each(|_| std::thread::yield_now());
}

/// Values whose sum depends on the order in which they are added.
pub fn values(rank: usize, round: usize) -> Vec<f32> {
    let mut state = (rank * 1000 + round) as u32 + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 1e6 * 10f32.powi((state % 9) as i32 - 4)
    };
    (0..97).map(|_| next()).collect()
}

/// `(0 + 1) + (2 + 3)`, then the rest: the left part is the largest power of two.
pub fn tree(shares: &[Vec<f32>]) -> Vec<f32> {
    if let [share] = shares {
        return share.clone();
    }
    let (left, right) = shares.split_at(shares.len().next_power_of_two() / 2);
    tree(left).iter().zip(tree(right)).map(|(left, right)| left + right).collect()
}

/// Shares that travel in bf16 are rounded once, and summed in f32.
fn halves_are_summed_in_full(make: Make) {
    let rounded = |rank: usize| -> Vec<bf16> { values(rank, 0).into_iter().map(bf16::from_f32).collect() };
    let sums = together(&make(3, PATIENT), |replica| {
        sum(replica, key(0, Operation::Gradients { bucket: 0 }), values(replica.rank(), 0), true).unwrap()
    });
    let shares: Vec<Vec<f32>> = (0..3).map(|rank| rounded(rank).into_iter().map(bf16::to_f32).collect()).collect();
    assert_eq!(sums, vec![tree(&shares); 3]);
}

fn sums_are_taken_in_one_tree(make: Make) {
    for size in 1..=5 {
        let sums = together(&make(size, PATIENT), |replica| {
            let round = |round| {
                dawdle(replica.rank(), round);
                let share = values(replica.rank(), round);
                sum(replica, key(round, Operation::Gradients { bucket: 0 }), share, false).unwrap()
            };
            (0..ROUNDS).map(round).collect::<Vec<_>>()
        });
        for round in 0..ROUNDS {
            let shares: Vec<_> = (0..size).map(|rank| values(rank, round)).collect();
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            for of_replica in &sums {
                assert_eq!(bits(&of_replica[round]), bits(&tree(&shares)), "{size} replicas, round {round}");
            }
        }
    }
}

fn everybody_gets_everything_in_rank_order(make: Make) {
    for size in 1..=5 {
        let own = |rank: usize, round: usize| vec![rank as f64; 1 + round % 3];
        let gathered = together(&make(size, PATIENT), |replica| {
            let round = |round| {
                dawdle(replica.rank(), round);
                let together = |all: Vec<Vec<f64>>| vec![all.concat()];
                replica.all_gather(key(round, Operation::Counts), own(replica.rank(), round), together).unwrap()
            };
            (0..ROUNDS).map(round).collect::<Vec<_>>()
        });
        for round in 0..ROUNDS {
            let expected: Vec<_> = (0..size).flat_map(|rank| own(rank, round)).collect();
            assert!(
                gathered.iter().all(|of_replica| *of_replica[round] == [expected.clone()]),
                "{size} replicas, round {round}"
            );
        }
    }
}

fn nobody_passes_a_barrier_alone(make: Make) {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    const SIZE: usize = 4;
    let arrived = AtomicUsize::new(0);
    together(&make(SIZE, PATIENT), |replica| {
        for round in 0..ROUNDS {
            dawdle(replica.rank(), round);
            arrived.fetch_add(1, SeqCst);
            replica.barrier(key(round, Operation::ForwardDone)).unwrap();
            assert!(arrived.load(SeqCst) >= (round + 1) * SIZE, "round {round}");
        }
    });
}

/// Layers, directions, micro-batches and operations of one step are all different meetings.
fn meetings_are_told_apart_by_the_whole_key(make: Make) {
    let statistics = |layer, direction| Operation::Statistics { layer, direction };
    let operations = [
        statistics(0, Direction::Forward),
        statistics(0, Direction::Backward),
        statistics(1, Direction::Forward),
        Operation::Counts,
    ];
    let keys: Vec<_> = operations
        .iter()
        .flat_map(|operation| [0, 1].map(|micro_batch| Key { micro_batch, ..key(3, *operation) }))
        .collect();
    // Two threads for each replica, which come to the same meetings from both ends.
    let group = make(2, PATIENT);
    std::thread::scope(|scope| {
        for replica in &group {
            for part in [&keys[..4], &keys[4..]] {
                scope.spawn(move || {
                    for (i, key) in part.iter().enumerate() {
                        dawdle(replica.rank(), i);
                        let own = format!("{key:?}").len() as f64 + replica.rank() as f64;
                        let all = replica.all_gather(*key, vec![own], |all| all).unwrap();
                        let base = own - replica.rank() as f64;
                        assert_eq!(*all, [[base], [base + 1.0]]);
                    }
                });
            }
        }
    });
}

fn an_abort_is_heard_by_all_and_for_good(make: Make) {
    let fell = || Broken::Replica("replica 2 fell".into());
    let group = make(4, PATIENT);
    let start = Instant::now();
    let verdicts = together(&group, |replica| {
        if replica.rank() == 2 {
            (0..100).for_each(|_| std::thread::yield_now());
            replica.abort(fell());
            replica.abort(Broken::Replica("a later reason".into()));
        }
        replica.barrier(key(0, Operation::BackwardDone))
    });
    assert!(start.elapsed() < PATIENT / 2, "nobody waits for the timeout");
    assert_eq!(verdicts, vec![Err(fell()); 4]);
    for replica in &group {
        assert_eq!(replica.barrier(key(9, Operation::ForwardDone)), Err(fell()));
        assert_eq!(sum(replica, key(9, Operation::Gradients { bucket: 0 }), vec![1.0], false), Err(fell()));
        assert_eq!(replica.all_gather(key(9, Operation::Counts), vec![1.0], |all| all), Err(fell()));
    }
}

fn who_does_not_come_is_named(make: Make) {
    for operation in
        [Operation::Gradients { bucket: 0 }, Operation::Statistics { layer: 4, direction: Direction::Backward }]
    {
        let group = make(4, Duration::from_millis(100));
        together(&group, |replica| replica.barrier(key(6, Operation::ForwardDone)).unwrap());
        let start = Instant::now();
        let verdicts = together(&group, |replica| match replica.rank() {
            1 | 3 => None,
            _ => Some(sum(replica, key(7, operation), vec![0.0], false).unwrap_err()),
        });
        assert!(start.elapsed() < Duration::from_secs(5), "the timeout is a tenth of a second");
        assert_eq!(verdicts[0], verdicts[2], "both hear the same");
        let Some(Broken::Replica(text)) = &verdicts[0] else { panic!("nobody was missed") };
        for part in ["replicas 1, 3 did not come", &operation.to_string(), "step 8", "0.1 s", "--timeout"] {
            assert!(text.contains(part), "'{part}' is not in '{text}'");
        }
    }
}

/// Whether the first meeting of that name is over for all or not: nobody ever gets its result twice.
fn who_comes_twice_gets_no_stale_result(make: Make) {
    for round in 0..20 {
        let group = make(2, Duration::from_millis(20));
        together(&group, |replica| replica.barrier(key(0, Operation::ForwardDone)).unwrap());
        let again = together(&group, |replica| {
            dawdle(replica.rank(), round);
            let first = sum(replica, key(1, Operation::Gradients { bucket: 0 }), vec![1.0], false);
            (replica.rank() == 0 && first.is_ok())
                .then(|| sum(replica, key(1, Operation::Gradients { bucket: 0 }), vec![2.0], false))
        });
        assert!(again[0].as_ref().is_none_or(Result::is_err), "{again:?}");
    }
}

fn who_comes_twice_to_a_meeting_breaks_the_group(make: Make) {
    let group = make(2, PATIENT);
    let first = group[0].clone();
    let verdicts = together(&[first.clone(), first], |replica| replica.barrier(key(1, Operation::BackwardDone)));
    assert!(verdicts.iter().all(|verdict| verdict == &verdicts[0]));
    let Err(Broken::Replica(text)) = &verdicts[0] else { panic!("nobody noticed") };
    assert!(text.contains("replica 0 came twice to the end of backward of step 2"), "{text}");
}

fn shares_of_other_lengths_are_not_added_up(make: Make) {
    let outcomes = together(&make(2, PATIENT), |replica| {
        sum(replica, key(0, Operation::Gradients { bucket: 0 }), vec![1.0; 1 + replica.rank()], false)
    });
    for outcome in outcomes {
        let Err(Broken::Replica(text)) = outcome else { panic!("a number is lost") };
        assert!(text.contains("replicas brought different numbers of values to the gradient all-reduce"), "{text}");
    }
}

/// `on_engine!(name, constructor; promises)` runs the promises on an engine.
macro_rules! on_engine {
    ($engine:ident, $make:expr; $($promise:ident)+) => {
        mod $engine { $(#[test] fn $promise() { super::$promise($make); })+ }
    };
}

/// What holds wherever replicas are; the last engine spreads them over processes.
macro_rules! on_any_engine {
    ($engine:ident, $make:expr; $($more:ident)*) => {
        on_engine!($engine, $make;
            sums_are_taken_in_one_tree halves_are_summed_in_full everybody_gets_everything_in_rank_order
            meetings_are_told_apart_by_the_whole_key $($more)*);
    };
}

fn threads(size: usize, timeout: Duration) -> Vec<Arc<Collective>> {
    local_group(size, None, timeout)
}

on_any_engine!(local, super::threads;
    nobody_passes_a_barrier_alone an_abort_is_heard_by_all_and_for_good who_does_not_come_is_named
    who_comes_twice_gets_no_stale_result who_comes_twice_to_a_meeting_breaks_the_group shares_of_other_lengths_are_not_added_up);

#[cfg(feature = "gloo")]
mod between_processes;

/// Tensors are added where they are, in the same tree.
fn tensors_are_summed_in_the_tree<B: HostBackend>() {
    let device = B::open(0).unwrap();
    for size in [2, 3, 5, 8] {
        let group = local_group(size, None, PATIENT);
        let shares = |round| (0..size).map(|rank| values(rank, round)).collect::<Vec<_>>();
        let sums = together(&group, |replica| {
            let tensor = |round| {
                let values = values(replica.rank(), round);
                let length = values.len();
                Tensor::<B, 1>::from_data(TensorData::new(values, [length]), &device)
            };
            let own = vec![tensor(0), tensor(1)];
            let lengths: Vec<usize> = own.iter().map(|tensor| tensor.dims()[0]).collect();
            let own = reduce_scatter::<B>(replica, key(0, Operation::Gradients { bucket: 0 }), own, &device).unwrap();
            let shares = [true, false].map(|shares| {
                let key = key(usize::from(shares), Operation::Weights);
                all_gather(replica, key, own.clone(), &lengths, &device, shares).unwrap()
            });
            let [sums, copies] = shares.map(|sums: Vec<Tensor<B, 1>>| {
                sums.into_iter().map(|sum| sum.into_data().iter::<f32>().collect::<Vec<_>>()).collect::<Vec<_>>()
            });
            assert_eq!(sums, copies);
            sums
        });
        for sum in sums {
            assert_eq!(sum, [tree(&shares(0)), tree(&shares(1))], "{size} replicas");
        }
    }
}

on_every_backend! {
    replicas_of_a_process_sum_tensors_on_their_device_in_the_tree => || tensors_are_summed_in_the_tree::<TestBackend>();
}
