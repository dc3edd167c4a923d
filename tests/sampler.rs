//! The order of samples: each id once per epoch, the same micro-batches for every world size.

use std::collections::BTreeSet;

use kiln_engine::parallel::{Group, Sampler, SamplerConfig, validation_batches, validation_place};
use proptest::prelude::*;

const CONFIG: SamplerConfig = SamplerConfig {
    len: 100,
    world_size: 2,
    batch_size: 8,
    accumulation_steps: 1,
    seed: 7,
    drop_last: false,
    shuffle: true,
    limit_micro_batches: 0,
    repeats: 1,
};

fn sampler(config: SamplerConfig) -> Sampler {
    Sampler::new(config).expect("a valid configuration")
}

/// Every micro-batch of an epoch, in order.
fn micro_batches(sampler: &Sampler, epoch: usize) -> Vec<Vec<u32>> {
    let of = |group: Group| (0..group.micro_batches()).map(move |micro| group.ids(micro));
    (0..sampler.steps_per_epoch()).flat_map(|step| of(sampler.group(epoch, step))).collect()
}

proptest! {
    #[test]
    fn every_id_appears_exactly_once_per_epoch(
        len in 1_usize..500, world_size in 1_usize..6, batch_size in 1_usize..40, accumulation_steps in 1_usize..5,
        seed: u64, epoch in 0_usize..9, drop_last: bool, shuffle: bool,
    ) {
        let global = world_size * batch_size;
        prop_assume!(!drop_last || len >= global);
        let config = SamplerConfig {
            len, world_size, batch_size, accumulation_steps, seed, drop_last, shuffle, limit_micro_batches: 0, repeats: 1,
        };
        let sampler = sampler(config);
        let mut ids = Vec::new();
        for step in 0..sampler.steps_per_epoch() {
            let group = sampler.group(epoch, step);
            prop_assert!((1..=accumulation_steps).contains(&group.micro_batches()));
            prop_assert_eq!(group.samples(), (0..group.micro_batches()).map(|micro| group.ids(micro).len()).sum::<usize>());
            for micro in 0..group.micro_batches() {
                let shards: Vec<_> = (0..world_size).map(|replica| group.shard(micro, replica, world_size)).collect();
                let lengths = shards.iter().map(Vec::len);
                prop_assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
                ids.extend(shards.concat());
            }
        }
        let expected = if drop_last { len / global * global } else { len };
        prop_assert_eq!(ids.len(), expected);
        prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), expected);
        prop_assert!(ids.iter().all(|&id| (id as usize) < len));
        prop_assert!(sampler.group(epoch, sampler.steps_per_epoch()).micro_batches() == 0);
    }
}

#[test]
fn the_micro_batches_of_a_global_batch_do_not_depend_on_the_world_size() {
    let of_world = |world_size| {
        let config = SamplerConfig { world_size, batch_size: 24 / world_size, ..CONFIG };
        let sampler = sampler(config);
        let group = |step| sampler.group(3, step);
        let united = |step| {
            let shards = (0..world_size).flat_map(|replica| group(step).shard(0, replica, world_size));
            shards.collect::<BTreeSet<u32>>()
        };
        (0..sampler.steps_per_epoch()).map(united).collect::<Vec<_>>()
    };
    let alone = of_world(1);
    assert_eq!(alone.iter().map(BTreeSet::len).collect::<Vec<_>>(), [24, 24, 24, 24, 4]);
    for world_size in 2..=4 {
        assert_eq!(of_world(world_size), alone, "world size {world_size}");
    }
}

#[test]
fn the_order_depends_on_seed_and_epoch_and_on_nothing_else() {
    let order = |seed, epoch| micro_batches(&sampler(SamplerConfig { seed, ..CONFIG }), epoch).concat();
    assert_eq!(order(7, 0), order(7, 0));
    assert_ne!(order(7, 0), order(7, 1));
    assert_ne!(order(7, 0), order(8, 0));
    let sampler = sampler(CONFIG);
    let later = sampler.group(5, 2);
    sampler.group(4, 0);
    assert_eq!(sampler.group(5, 2), later, "an epoch asked for again");
}

#[test]
fn the_order_is_the_same_for_good() {
    let order = micro_batches(&sampler(SamplerConfig { len: 12, seed: 42, ..CONFIG }), 1).concat();
    assert_eq!(order, GOLDEN);
}

// From ChaCha8, Lemire and Fisher-Yates written out separately.
const GOLDEN: [u32; 12] = [2, 4, 11, 7, 5, 3, 6, 8, 10, 1, 9, 0];

proptest! {
    #[test]
    fn windows_are_a_permutation_that_needs_few_shards_at_a_time(
        shards in prop::collection::vec(0_u32..9, 1..300), window in 1_usize..5, seed: u64, epoch in 0_usize..5,
    ) {
        let config = SamplerConfig { len: shards.len(), seed, ..CONFIG };
        let windowed = sampler(config).in_windows(&shards, window);
        let order = micro_batches(&windowed, epoch).concat();
        prop_assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), shards.len());
        prop_assert_eq!(order.len(), shards.len());
        for world_size in [1, 4] {
            let other = sampler(SamplerConfig { world_size, batch_size: 16 / world_size, ..config });
            prop_assert_eq!(&micro_batches(&other.in_windows(&shards, window), epoch).concat(), &order);
        }
        // A shard is needed from the first of its samples to the last.
        let is_of = |id: &u32, shard: u32| shards[*id as usize] == shard;
        let first = |shard: u32| order.iter().position(|id| is_of(id, shard));
        let last = |shard: u32| order.iter().rposition(|id| is_of(id, shard));
        let spans: Vec<_> = (0..9).filter_map(|shard| first(shard).zip(last(shard))).collect();
        for position in 0..order.len() {
            let open = spans.iter().filter(|(first, last)| (*first..=*last).contains(&position)).count();
            prop_assert!(open <= window, "{} shards at {}", open, position);
        }
    }
}

#[test]
fn windows_mix_shards_in_another_order_in_every_epoch() {
    let shards: Vec<u32> = (0..100).map(|id| id / 10).collect();
    let order = |seed, epoch, window| {
        micro_batches(&sampler(SamplerConfig { seed, ..CONFIG }).in_windows(&shards, window), epoch).concat()
    };
    assert_eq!(order(7, 1, 2), order(7, 1, 2));
    for other in [order(8, 1, 2), order(7, 2, 2), order(7, 1, 3)] {
        assert_ne!(order(7, 1, 2), other);
    }
    // Every pair of shards is in one window in some epoch, and samples of both alternate there.
    let mut pairs = BTreeSet::new();
    for epoch in 0..300 {
        for window in order(7, epoch, 2).chunks(20) {
            let of: Vec<u32> = window.iter().map(|id| shards[*id as usize]).collect();
            let both: BTreeSet<u32> = of.iter().copied().collect();
            assert_eq!(both.len(), 2);
            let changes = of.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert!((2..=18).contains(&changes), "{of:?}");
            pairs.insert(both);
        }
    }
    assert_eq!(pairs.len(), 45);
}

#[test]
fn without_shards_windows_change_nothing() {
    let order = |sampler: Sampler| micro_batches(&sampler, 3).concat();
    assert_eq!(order(sampler(CONFIG).in_windows(&[], 4)), order(sampler(CONFIG)));
}

#[test]
fn what_was_asked_before_does_not_change_the_order() {
    let (asked, shards) = (sampler(CONFIG), [0, 1, 2, 3].repeat(25));
    for epoch in [0, 1, 2, 0, 2] {
        assert_eq!(micro_batches(&asked, epoch), micro_batches(&sampler(CONFIG), epoch), "{epoch}");
    }
    let fresh = sampler(CONFIG).in_windows(&shards, 2);
    assert_eq!(micro_batches(&asked.in_windows(&shards, 2), 0), micro_batches(&fresh, 0));
    assert_eq!(fresh.len(), 100);
}

#[test]
fn an_epoch_without_shuffling_is_in_the_order_of_the_data_set() {
    let order = micro_batches(&sampler(SamplerConfig { shuffle: false, ..CONFIG }), 4).concat();
    assert_eq!(order, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_limit_counts_global_micro_batches() {
    let sampler = sampler(SamplerConfig { limit_micro_batches: 3, accumulation_steps: 2, ..CONFIG });
    assert_eq!(sampler.steps_per_epoch(), 2);
    assert_eq!(sampler.group(0, 0).micro_batches(), 2);
    assert_eq!(sampler.group(0, 1).micro_batches(), 1);
}

#[test]
fn dropping_the_only_batch_is_refused_with_the_flags_to_change() {
    let config = SamplerConfig { len: 15, drop_last: true, ..CONFIG };
    let error = Sampler::new(config).expect_err("no step is left");
    assert_eq!(error.exit_code(), 2);
    for part in ["--batch-size", "--world-size", "data.drop_last", "'16'"] {
        assert!(error.to_string().contains(part), "'{error}' does not name '{part}'");
    }
}

#[test]
fn nothing_to_sample_and_sizes_of_zero_are_refused() {
    let zeros = [
        SamplerConfig { len: 0, ..CONFIG },
        SamplerConfig { world_size: 0, ..CONFIG },
        SamplerConfig { batch_size: 0, ..CONFIG },
        SamplerConfig { accumulation_steps: 0, ..CONFIG },
    ];
    for config in zeros {
        assert!(Sampler::new(config).expect_err("a zero").to_string().contains("'0'"));
    }
}

#[test]
fn validation_covers_every_image_exactly_once_for_every_world_size() {
    for world_size in 1..=5 {
        let of_replica = |replica| validation_batches(1_001, world_size, replica, 32, 0);
        let rounds: BTreeSet<usize> = (0..world_size).map(|replica| of_replica(replica).len()).collect();
        assert_eq!(rounds.len(), 1, "replicas disagree on the number of batches");
        let mut ids: Vec<u32> = (0..world_size).flat_map(|replica| of_replica(replica).concat()).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..1_001).collect::<Vec<_>>(), "world size {world_size}");
    }
}

#[test]
fn a_validation_limit_takes_the_first_global_batches() {
    let mut ids: Vec<u32> = (0..3).flat_map(|replica| validation_batches(1_001, 3, replica, 10, 2).concat()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..60).collect::<Vec<_>>());
}

#[test]
fn all_copies_of_a_sample_are_in_one_micro_batch_and_have_mirrored_partners() {
    let config = SamplerConfig { len: 20, world_size: 2, batch_size: 4, repeats: 3, shuffle: false, ..CONFIG };
    let steps = [0, 1, 2].map(|step| sampler(config).group(0, step));
    let ids = steps.each_ref().map(|group| group.ids(0));
    assert_eq!(ids, [vec![0, 0, 0, 1, 1, 1, 2, 2], vec![3, 3, 3, 4, 4, 4, 5, 5], vec![6, 6, 6, 7]]);
    assert_eq!(steps.each_ref().map(Group::samples), [8, 8, 4]);
    assert_eq!(steps[0].copies(0, 0, 1), [0, 1, 2, 0, 1, 2, 0, 1]);
    // Every second entry.
    assert_eq!((steps[0].shard(0, 1, 2), steps[0].copies(0, 1, 2)), (vec![0, 1, 1, 2], vec![1, 0, 2, 1]));
    assert_eq!((steps[0].partners(0, 1, 2), steps[0].partner_copies(0, 1, 2)), (vec![2, 1, 0, 0], vec![0, 1, 2, 0]));
    assert_eq!(sampler(config).group(0, 3).micro_batches(), 0, "behind the end");
}

#[test]
fn the_steps_that_samples_fill_are_counted_up_to_the_end_of_the_epoch() {
    let within = |config, samples: &[usize]| -> Vec<usize> {
        samples.iter().map(|samples| sampler(config).steps_within(*samples)).collect()
    };
    let steps_of_two = SamplerConfig { accumulation_steps: 2, ..CONFIG };
    assert_eq!(within(steps_of_two, &[0, 31, 32, 63, 64, 99, 100, 1000]), [0, 0, 1, 1, 2, 3, 4, 4]);
    assert_eq!(within(SamplerConfig { limit_micro_batches: 3, ..steps_of_two }, &[47, 48]), [1, 2]);
    assert_eq!(within(SamplerConfig { drop_last: true, ..steps_of_two }, &[95, 96]), [2, 3]);
}

#[test]
fn the_place_of_a_validation_image_is_where_its_replica_has_it() {
    for image in 0..10 {
        let (replica, index) = validation_place(image, 3);
        assert_eq!(validation_batches(10, 3, replica, 2, 0).concat()[index], image as u32);
    }
}
