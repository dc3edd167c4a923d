//! Several views of an image in a step: one crop, and draws of their own for all else.

use std::collections::BTreeSet;

use kiln_data::synthetic::{NORMALIZATION, Split, draw};
use kiln_data::{Augment, AutoAugment, DataConfig, ErasingFill, Purpose, SampleKey};
use kiln_engine::parallel::Shard;

use super::{assemble, normalized};

const IDS: [u32; 3] = [3, 0, 2];
const PIXELS: usize = 3 * 32 * 32;

/// The images of a batch, in its order.
fn batch(config: &DataConfig, shard: &Shard) -> Vec<Vec<f32>> {
    let images = draw(Split::Train, 4).expect("four images");
    let batch = assemble(&images, &Augment::new(config, NORMALIZATION), 5, shard, None).unwrap();
    assert_eq!((batch.ids.len(), batch.labels.len()), (shard.ids.len(), shard.ids.len()), "an image counts once");
    batch.images.on_host().chunks(PIXELS).map(<[f32]>::to_vec).collect()
}

fn shard(ids: &[u32]) -> Shard {
    Shard { epoch: 1, ids: ids.to_vec(), ..Shard::default() }
}

fn everything() -> DataConfig {
    DataConfig {
        views: 3,
        auto_augment: "rand-m9-mstd0.5-inc1".parse::<AutoAugment>().unwrap(),
        color_jitter: 0.4,
        cutout: 5,
        random_erasing: 1.0,
        erasing_fill: ErasingFill::Pixel,
        ..DataConfig::default()
    }
}

#[test]
fn the_first_views_are_cropped_and_mirrored_only_and_lie_before_the_others() {
    let clean = batch(&DataConfig::default(), &shard(&IDS));
    let erased = batch(
        &DataConfig { cutout: 0, color_jitter: 0.0, auto_augment: AutoAugment::None, views: 1, ..everything() },
        &shard(&IDS),
    );
    let views = batch(&DataConfig { erase_first_view: false, ..everything() }, &shard(&IDS));
    assert_eq!(views.len(), 9);
    assert_eq!(views[..3], clean);
    let all_erased = batch(&everything(), &shard(&IDS));
    assert_eq!(all_erased[..3], erased, "the first view, erased as the image alone");
    assert_eq!(all_erased[3..], views[3..]);
    let different: BTreeSet<Vec<u32>> =
        views.iter().map(|view| view.iter().map(|value| value.to_bits()).collect()).collect();
    assert_eq!(different.len(), 9, "each has its own draws");
}

#[test]
fn views_have_one_crop_and_policies_of_their_own() {
    let plain = batch(&DataConfig { views: 3, ..DataConfig::default() }, &shard(&IDS));
    assert!(plain[3..].chunks(3).all(|view| *view == plain[..3]), "all that they share");
    let config =
        DataConfig { crop_padding: 0, flip: false, random_erasing: 0.0, cutout: 0, color_jitter: 0.0, ..everything() };
    let views = batch(&config, &shard(&IDS));
    let (images, mean) = (draw(Split::Train, 4).unwrap(), NORMALIZATION.mean.map(|mean| (255.0 * mean).round() as u8));
    for (nth, view) in views.iter().enumerate() {
        let id = IDS[nth % 3];
        let key = SampleKey { seed: 5, epoch: 1, sample: id };
        let image = images.image(id).unwrap();
        let varied = config.auto_augment.apply(&image, [32, 32], mean, None, key.view(nth as u32 / 3));
        let expected = if nth < 3 { &image } else { &varied };
        let alone = Augment::new(&DataConfig { crop_padding: 0, flip: false, ..DataConfig::default() }, NORMALIZATION);
        assert_eq!(*view, normalized(&alone, expected, [32, 32], key), "view {nth}");
    }
}

#[test]
fn a_view_does_not_depend_on_who_else_is_in_the_batch() {
    let all = batch(&everything(), &shard(&IDS));
    for (place, id) in IDS.into_iter().enumerate() {
        let alone = batch(&everything(), &shard(&[id]));
        assert!((0..3).all(|view| alone[view] == all[3 * view + place]), "{id}");
    }
    // Beside repeated augmentation.
    let copies = Shard { copies: vec![0, 1, 2], ..shard(&[3; 3]) };
    let views = batch(&everything(), &copies);
    let different: BTreeSet<Vec<u32>> =
        views.iter().map(|view| view.iter().map(|value| value.to_bits()).collect()).collect();
    assert_eq!(different.len(), 9);
    assert_eq!(views[0], all[0]);
    let key = SampleKey { seed: 1, epoch: 2, sample: 3 };
    let keys = (0..3).flat_map(|copy| (0..3).map(move |view| key.copy(copy).view(view)));
    assert_eq!(keys.map(|key| key.draw(Purpose::Erase, u32::MAX)).collect::<BTreeSet<_>>().len(), 9);
    assert_eq!(key.view(0), key);
}
