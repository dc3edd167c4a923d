//! Mixup and cutmix: timm's rectangles, Beta's moments, and the same mixed images on any number of replicas.

use std::sync::Arc;

use kiln_data::mixing::patch;
use kiln_data::synthetic::{NORMALIZATION, Split, draw};
use kiln_data::{Augment, DataConfig, HostBatch, ImageSet, Mixing, Purpose, Rectangle, SampleKey, own_share};
use kiln_engine::parallel::{Group, Loader, MicroBatch, Sampler, SamplerConfig, Shard};
use kiln_ops::images::MixBy;

use super::assemble;
use crate::files::file;

const SEED: u64 = 11;
const SIZE: [usize; 2] = [32, 32];
const BOTH: Mixing = Mixing { mixup_alpha: 0.8, cutmix_alpha: 1.0, prob: 1.0, switch_prob: 0.5 };

fn key(sample: u32) -> SampleKey {
    SampleKey { seed: SEED, epoch: 2, sample }
}

fn images() -> ImageSet {
    draw(Split::Train, 40).expect("forty images")
}

fn augment() -> Augment {
    Augment::new(&DataConfig { rand_augment_ops: 1, ..DataConfig::default() }, NORMALIZATION)
}

/// What every replica of a world prepares for the second step of epoch 2, mixed as `mixing` says.
fn world(mixing: Mixing, world_size: usize, repeats: usize) -> Vec<HostBatch> {
    let sampler = Sampler::new(SamplerConfig {
        len: 40,
        world_size,
        batch_size: 12 / world_size,
        accumulation_steps: 1,
        seed: SEED,
        drop_last: false,
        shuffle: true,
        limit_micro_batches: 0,
        repeats,
    });
    let group = sampler.unwrap().group(2, 1);
    let first = key(group.ids(0)[0]);
    let shard = |replica| {
        let partners = group.partners(0, replica, world_size);
        let copies = group.partner_copies(0, replica, world_size);
        let (ids, partner_copies) = (group.shard(0, replica, world_size), copies);
        let copies = group.copies(0, replica, world_size);
        Shard { epoch: 2, ids, copies, partners, partner_copies, ..Shard::default() }
    };
    let mix = mixing.draw(first, SIZE);
    let batch = |replica| assemble(&images(), &augment(), SEED, &shard(replica), mix).unwrap();
    (0..world_size).map(batch).collect()
}

/// Id, label, partner's label, and pixels of every sample, in the order of ids.
fn samples(batches: &[HostBatch]) -> Vec<(u32, u32, u32, Vec<f32>)> {
    let of = |batch: &HostBatch| {
        let partners = batch.partners.clone().expect("they are mixed");
        let pixels = batch.images.on_host();
        let pixels = pixels.chunks_exact(3072).map(<[f32]>::to_vec);
        let labels = batch.labels.clone().into_iter().zip(partners.labels);
        let each = batch.ids.clone().into_iter().zip(labels).zip(pixels);
        each.map(|((id, (own, partner)), pixels)| (id, own, partner, pixels)).collect::<Vec<_>>()
    };
    let mut all = batches.iter().flat_map(of).collect::<Vec<_>>();
    // Copies of one sample have their pixels to be told apart by.
    all.sort_by(|one, other| one.partial_cmp(other).expect("pixels are numbers"));
    all
}

/// The share of the own images.
fn share(mixing: Mixing, sample: u32) -> f32 {
    mixing.draw(key(sample), SIZE).map_or(1.0, |by| own_share(by, SIZE))
}

#[test]
fn a_mixed_micro_batch_is_the_same_on_any_number_of_replicas() {
    for mixing in [Mixing { cutmix_alpha: 0.0, ..BOTH }, Mixing { mixup_alpha: 0.0, ..BOTH }] {
        for repeats in [1, 2, 5] {
            let alone = world(mixing, 1, repeats);
            assert_eq!(samples(&alone).len(), 12);
            for world_size in [2, 3, 4, 12] {
                let together = world(mixing, world_size, repeats);
                assert_eq!(samples(&together), samples(&alone), "{world_size} replicas, {repeats} copies");
                let share = |batch: &HostBatch| batch.partners.as_ref().unwrap().share;
                assert!(together.iter().all(|batch| share(batch) == share(&alone[0])));
            }
        }
    }
}

#[test]
fn partners_are_those_of_the_reversed_micro_batch_of_all_replicas() {
    let micro_batches = vec![MicroBatch { start: 0, len: 1 }, MicroBatch { start: 1, len: 5 }];
    let group = Group::new(Arc::new(vec![9, 10, 11, 12, 13, 14]), micro_batches, 1);
    assert_eq!(group.partners(1, 0, 1), [14, 13, 12, 11, 10]);
    assert_eq!([group.shard(1, 0, 2), group.partners(1, 0, 2)], [[10, 12, 14], [14, 12, 10]]);
    assert_eq!([group.shard(1, 1, 2), group.partners(1, 1, 2)], [[11, 13], [13, 11]]);
    assert_eq!(group.partners(1, 6, 7), [0; 0]);
    assert_eq!(group.partners(2, 0, 1), [0; 0]);
}

#[test]
fn both_images_are_augmented_as_themselves_before_they_are_mixed() {
    let (images, augment, stride) = (images(), augment(), 3072);
    let ids = vec![4, 8, 15];
    let plain =
        assemble(&images, &augment, SEED, &Shard { epoch: 2, ids: ids.clone(), ..Shard::default() }, None).unwrap();
    assert_eq!(plain.partners, None);
    let plain = plain.images.on_host();
    for (mix, share) in [(MixBy::Share(0.3), 0.3), (MixBy::Area([3, 20, 5, 9]), 1.0 - 17.0 * 4.0 / 1024.0)] {
        let shard = Shard { epoch: 2, ids: ids.clone(), partners: vec![15, 8, 4], ..Shard::default() };
        let batch = assemble(&images, &augment, SEED, &shard, Some(mix)).unwrap();
        let partners = batch.partners.clone().unwrap();
        assert_eq!((batch.labels, partners.labels), (vec![4, 8, 5], vec![5, 8, 4]));
        assert!((f64::from(partners.share) - share).abs() < 1e-7, "{mix:?}");
        for (index, value) in batch.images.on_host().iter().enumerate() {
            let (at, within) = (index / stride, index % stride);
            let (own, partner) = (plain[index], plain[(2 - at) * stride + within]);
            let (row, column) = (within % 1024 / 32, within % 32);
            let expected = match mix {
                MixBy::Share(_) => 0.3 * own + 0.7 * partner,
                MixBy::Area(_) if (3..20).contains(&row) && (5..9).contains(&column) => partner,
                MixBy::Area(_) => own,
            };
            assert!((value - expected).abs() < 1e-6, "{mix:?}, {index}: {value} is not {expected}");
        }
    }
}

#[test]
fn a_loader_mixes_as_it_is_asked() {
    let (ids, copies) = (vec![1, 2], vec![1, 0]);
    let mixed = Shard { ids, copies, partners: vec![2, 1], partner_copies: vec![0, 1], ..Shard::default() };
    let shards = [(mixed, Some(MixBy::Share(0.75))), (Shard { ids: vec![3], ..Shard::default() }, None)];
    let expected = shards.clone().map(|(shard, mix)| assemble(&images(), &augment(), SEED, &shard, mix).unwrap());
    let (images, augment) = (images(), augment());
    let show = move |(shard, mix): (Shard, _)| assemble(&images, &augment, SEED, &shard, mix);
    let loader = Loader::new(shards.into_iter(), show, 2).expect("a thread");
    assert_eq!(loader.map(Result::unwrap).collect::<Vec<_>>(), expected);
}

#[test]
fn shares_have_the_mean_and_the_variance_of_beta() {
    let count = 20_000;
    for alpha in [0.2, 1.0, 4.0] {
        let mixing = Mixing { mixup_alpha: alpha, cutmix_alpha: 0.0, ..BOTH };
        let shares: Vec<f64> = (0..count).map(|sample| f64::from(share(mixing, sample))).collect();
        let mean = shares.iter().sum::<f64>() / f64::from(count);
        let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / f64::from(count);
        let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
        assert!((mean - 0.5).abs() < 4.0 * (expected / f64::from(count)).sqrt(), "alpha {alpha}: mean {mean}");
        assert!((variance / expected - 1.0).abs() < 0.04, "alpha {alpha}: variance {variance}, not {expected}");
    }
}

#[test]
fn a_share_is_the_same_for_good() {
    let shares = [0, 1, 2].map(|sample| share(Mixing { cutmix_alpha: 0.0, ..BOTH }, sample));
    assert_eq!(shares, GOLDEN);
}

// Of this version of `rand_distr`; another algorithm for Beta would be another experiment.
const GOLDEN: [f32; 3] = [0.907_050_67, 0.814_183_9, 0.330_499_47];

#[test]
fn rectangles_and_corrected_shares_agree_with_timm() {
    let text = std::fs::read_to_string(file("tests/fixtures/augment/cutmix.txt")).unwrap();
    assert_eq!(text.lines().count(), 48);
    for line in text.lines() {
        let number = |at: usize| line.split(' ').nth(at).unwrap().parse::<f64>().unwrap();
        let whole = |at| number(at) as usize;
        let size = [whole(0), whole(1)];
        let rectangle = patch(number(2), [whole(3), whole(4)], size);
        assert_eq!(rectangle, Rectangle { rows: whole(5)..whole(6), columns: whole(7)..whole(8) }, "{line}");
        let area = MixBy::Area([5, 6, 7, 8].map(|at| whole(at) as u16));
        assert!((f64::from(own_share(area, size)) - number(9)).abs() < 1e-7, "{line}");
    }
}

#[test]
fn a_rectangle_lies_around_a_pixel_whose_row_and_column_are_drawn_apart() {
    let size = [24, 40];
    let mut whole = 0;
    for sample in 0..400 {
        let mix = Mixing { mixup_alpha: 0.0, ..BOTH }.draw(key(sample), size);
        let Some(MixBy::Area([top, bottom, left, right])) = mix else { panic!("no cutmix") };
        let centre = [(top, bottom), (left, right)].map(|(start, end)| usize::from(start + (end - start) / 2));
        if top > 0 && bottom < 24 && left > 0 && right < 40 {
            let drawn = [(Purpose::CutmixRow, 24), (Purpose::CutmixColumn, 40)];
            assert_eq!(centre, drawn.map(|(purpose, bound)| key(sample).draw(purpose, bound) as usize));
            whole += 1;
        }
    }
    assert!(whole > 20, "only {whole} are whole");
}

#[test]
fn how_often_and_by_what_a_micro_batch_is_mixed_follows_the_probabilities() {
    let count = |mixing: Mixing| {
        let mut counts = [0; 3];
        (0..4_000).for_each(|sample| {
            counts[match mixing.draw(key(sample), SIZE) {
                None => 0,
                Some(MixBy::Share(_)) => 1,
                Some(MixBy::Area(_)) => 2,
            }] += 1;
        });
        counts
    };
    let about = |counts: [i32; 3], expected: [i32; 3]| {
        assert!(counts.iter().zip(expected).all(|(count, expected)| (count - expected).abs() < 130), "{counts:?}");
    };
    about(count(BOTH), [0, 2_000, 2_000]);
    about(count(Mixing { prob: 0.4, switch_prob: 0.25, ..BOTH }), [2_400, 1_200, 400]);
    assert_eq!(count(Mixing { prob: 0.0, ..BOTH }), [4_000, 0, 0]);
    assert_eq!(count(Mixing { cutmix_alpha: 0.0, ..BOTH }), [0, 4_000, 0]);
    assert_eq!(count(Mixing { mixup_alpha: 0.0, ..BOTH }), [0, 0, 4_000]);
    assert_eq!(count(Mixing { mixup_alpha: 0.0, cutmix_alpha: 0.0, ..BOTH }), [4_000, 0, 0]);
}

#[test]
fn no_alpha_makes_a_share_that_is_no_number() {
    for alpha in [f64::MIN_POSITIVE, 1e-12, 1e-3, 1e6, f64::MAX, f64::INFINITY, f64::NAN, -1.0] {
        for sample in 0..200 {
            let mixing = Mixing { mixup_alpha: alpha, cutmix_alpha: alpha, ..BOTH };
            let share = share(mixing, sample);
            assert!((0.0..=1.0).contains(&share), "alpha {alpha}: {share}");
        }
    }
}

#[test]
fn mixing_is_off_unless_it_is_asked_for() {
    let on = DataConfig { mixup: 0.2, cutmix: 1.0, mix_prob: 0.5, ..DataConfig::default() };
    let expected = Mixing { mixup_alpha: 0.2, cutmix_alpha: 1.0, prob: 0.5, switch_prob: 0.5 };
    assert_eq!(Mixing::new(&on), Some(expected));
    assert_eq!(Mixing::new(&DataConfig::default()), None);
    assert_eq!(Mixing::new(&DataConfig { augment: false, ..on.clone() }), None);
    assert_eq!(Mixing::new(&DataConfig { mix_prob: 0.0, ..on.clone() }), None);
    assert!(Mixing::new(&DataConfig { mixup: 0.0, ..on }).is_some());
}
