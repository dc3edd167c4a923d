//! Repeated augmentation: copies of a sample stand in one micro-batch, look different, and take the place of others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kiln_data::synthetic::{NORMALIZATION, Split, draw};
use kiln_data::{Augment, DataConfig, Purpose, SampleKey};
use kiln_engine::parallel::{Group, MicroBatch, Sampler, SamplerConfig, Shard};

use super::{assemble, assert_names};

const CONFIG: SamplerConfig = SamplerConfig {
    len: 100,
    world_size: 2,
    batch_size: 12,
    accumulation_steps: 1,
    seed: 7,
    drop_last: false,
    shuffle: true,
    limit_micro_batches: 0,
    repeats: 3,
};

/// The groups of an epoch of one micro-batch each.
fn groups(config: SamplerConfig) -> Vec<Group> {
    let sampler = Sampler::new(config).expect("a valid configuration");
    (0..sampler.steps_per_epoch()).map(|step| sampler.group(3, step)).collect()
}

fn ids(config: SamplerConfig) -> Vec<u32> {
    groups(config).into_iter().flat_map(|group| group.ids(0)).collect()
}

#[test]
fn an_epoch_is_the_first_samples_of_its_permutation_each_so_often() {
    let order = ids(SamplerConfig { repeats: 1, ..CONFIG });
    let repeated = ids(CONFIG);
    assert_eq!(repeated.len(), 100, "as long as without");
    let expected: Vec<u32> = order.iter().flat_map(|id| [*id; 3]).take(100).collect();
    assert_eq!(repeated, expected);
}

#[test]
fn all_copies_of_a_sample_are_in_one_micro_batch_also_where_they_do_not_fill_it() {
    for (repeats, batch_size) in [(2, 12), (3, 8), (5, 12), (7, 3), (50, 4)] {
        let config = SamplerConfig { repeats, batch_size, ..CONFIG };
        let mut seen = BTreeSet::new();
        for group in groups(config) {
            let of_group = group.ids(0);
            let mut counts = BTreeMap::new();
            of_group.iter().for_each(|id| *counts.entry(*id).or_insert(0) += 1);
            let last = of_group.last().unwrap();
            assert!(counts.iter().all(|(id, count)| id == last || *count == repeats), "{repeats}: {counts:?}");
            assert!(counts.keys().all(|id| seen.insert(*id)), "in another micro-batch before");
            let pairs: BTreeSet<_> = of_group.iter().copied().zip(group.copies(0, 0, 1)).collect();
            assert_eq!(pairs.len(), of_group.len(), "no copy twice");
        }
    }
}

#[test]
fn replicas_agree_on_which_copy_an_entry_and_its_partner_are() {
    let group = Group::new(Arc::new(vec![8, 4, 6]), vec![MicroBatch { start: 0, len: 7 }], 3);
    assert_eq!(group.ids(0), [8, 8, 8, 4, 4, 4, 6]);
    assert_eq!(group.copies(0, 0, 1), [0, 1, 2, 0, 1, 2, 0]);
    assert_eq!((group.shard(0, 1, 2), group.copies(0, 1, 2)), (vec![8, 4, 4], vec![1, 0, 2]));
    assert_eq!((group.partners(0, 1, 2), group.partner_copies(0, 1, 2)), (vec![4, 4, 8], vec![2, 0, 1]));
    assert_eq!(group.copies(1, 0, 1), [0; 0]);
}

#[test]
fn copies_look_different_and_the_first_is_the_sample_as_it_always_was() {
    let images = draw(Split::Train, 4).expect("four images");
    let augment = Augment::new(&DataConfig { rand_augment_ops: 2, ..DataConfig::default() }, NORMALIZATION);
    let shown = |copies: Vec<u32>| {
        let shard = Shard { epoch: 1, ids: vec![3; 4], copies, ..Shard::default() };
        let batch = assemble(&images, &augment, 5, &shard, None).unwrap();
        assert_eq!(batch.ids, [3; 4], "logs see the plain id");
        batch.images.on_host()
    };
    let (copies, plain) = (shown(vec![0, 1, 2, 3]), shown(Vec::new()));
    let of = |pixels: &[f32], at: usize| pixels[at * 3072..][..3072].to_vec();
    assert_eq!(of(&copies, 0), of(&plain, 3));
    assert!((1..4).all(|at| (0..at).all(|other| of(&copies, at) != of(&copies, other))));
}

#[test]
fn a_copy_has_draws_of_its_own() {
    let key = SampleKey { seed: 1, epoch: 2, sample: 3 };
    let draw = |key: SampleKey| key.draw(Purpose::CropTop, u32::MAX);
    assert_eq!(key.copy(0), key);
    let different =
        [key, key.copy(1), key.copy(2), SampleKey { sample: 4, ..key }.copy(1), SampleKey { epoch: 3, ..key }.copy(1)];
    assert_eq!(different.map(draw).into_iter().collect::<BTreeSet<_>>().len(), different.len());
}

#[test]
fn no_copy_at_all_is_refused_with_the_key_to_change() {
    let error = Sampler::new(SamplerConfig { repeats: 0, ..CONFIG }).expect_err("a zero");
    assert_names(&error.to_string(), &["data.repeated_augmentation", "'0'"]);
}
