//! Augmentation, against a computation pixel by pixel that shares nothing with it but the keyed draws.

use kiln_data::{Augment, CropFill, DataConfig, Normalization, Purpose, SampleKey};

use super::normalized;

const SIZE: [usize; 2] = [7, 5];
const NORMALIZATION: Normalization = Normalization::CIFAR10;

fn image() -> Vec<u8> {
    (0..3 * SIZE[0] * SIZE[1]).map(|index| (index * 37 % 256) as u8).collect()
}

fn apply(augment: &Augment, key: SampleKey) -> Vec<f32> {
    normalized(augment, &image(), SIZE, key)
}

fn normalised(byte: u8, channel: usize) -> f32 {
    (f32::from(byte) / 255.0 - NORMALIZATION.mean[channel]) / NORMALIZATION.std[channel]
}

/// What the configuration promises, one pixel at a time: pad, crop, mirror, normalise, blank.
fn slowly(config: &DataConfig, key: SampleKey) -> Vec<f32> {
    let ([height, width], padding) = (SIZE, config.crop_padding);
    let draw = |purpose, bound: usize| key.draw(purpose, bound as u32) as usize;
    let (top, left) = (draw(Purpose::CropTop, 2 * padding + 1), draw(Purpose::CropLeft, 2 * padding + 1));
    let mirrored = config.flip && draw(Purpose::Flip, 2) == 1;
    let (middle_row, middle_column) = (draw(Purpose::CutoutRow, height), draw(Purpose::CutoutColumn, width));
    let blank = |at: usize, middle: usize| {
        let first = middle as isize - (config.cutout / 2) as isize;
        (first..first + config.cutout as isize).contains(&(at as isize))
    };
    let source = image();
    let mut out = Vec::new();
    for channel in 0..3 {
        let fill = if config.crop_fill == CropFill::Black { normalised(0, channel) } else { 0.0 };
        let mut padded = vec![vec![fill; width + 2 * padding]; height + 2 * padding];
        for row in 0..height {
            for column in 0..width {
                let byte = source[(channel * height + row) * width + column];
                padded[row + padding][column + padding] = normalised(byte, channel);
            }
        }
        for row in 0..height {
            for column in 0..width {
                let seen = if mirrored { width - 1 - column } else { column };
                let value = padded[row + top][seen + left];
                out.push(if blank(row, middle_row) && blank(column, middle_column) { 0.0 } else { value });
            }
        }
    }
    out
}

#[test]
fn crop_flip_and_cutout_agree_with_a_computation_by_hand() {
    for (crop_padding, crop_fill, flip, cutout) in [
        (0, CropFill::Mean, false, 0),
        (2, CropFill::Mean, false, 0),
        (2, CropFill::Black, false, 0),
        (0, CropFill::Black, true, 0),
        (4, CropFill::Mean, true, 0),
        (9, CropFill::Black, true, 3),
        (1, CropFill::Mean, true, 4),
    ] {
        let config = DataConfig { crop_padding, crop_fill, flip, cutout, ..DataConfig::default() };
        let augment = Augment::new(&config, NORMALIZATION);
        for sample in 0..200 {
            let key = SampleKey { seed: 3, epoch: 5, sample };
            assert_eq!(apply(&augment, key), slowly(&config, key), "{config:?}, sample {sample}");
        }
    }
}

#[test]
fn every_offset_and_both_directions_are_drawn_about_equally_often() {
    let count = |purpose, bound: u32| {
        let mut counts = vec![0; bound as usize];
        (0..9_000)
            .for_each(|sample| counts[SampleKey { seed: 0, epoch: 0, sample }.draw(purpose, bound) as usize] += 1);
        counts
    };
    assert!(count(Purpose::CropTop, 9).iter().all(|count| (850..1150).contains(count)));
    assert!(count(Purpose::Flip, 2).iter().all(|count| (4350..4650).contains(count)));
}

#[test]
fn seed_epoch_sample_and_purpose_each_change_the_draw() {
    let key = SampleKey { seed: 1, epoch: 2, sample: 3 };
    let draw = |key: SampleKey| key.draw(Purpose::CropTop, u32::MAX);
    assert_ne!(draw(key), draw(SampleKey { seed: 2, ..key }));
    assert_ne!(draw(key), draw(SampleKey { epoch: 3, ..key }));
    assert_ne!(draw(key), draw(SampleKey { sample: 2, ..key }));
    assert_ne!(draw(key), key.draw(Purpose::CropLeft, u32::MAX));
    assert_ne!(draw(SampleKey { epoch: 3, sample: 2, ..key }), draw(key), "epoch and sample are not interchangeable");
}

#[test]
fn a_plain_augmentation_only_normalises() {
    let off = DataConfig { augment: false, cutout: 8, ..DataConfig::default() };
    let key = SampleKey { seed: 0, epoch: 0, sample: 0 };
    let plane = SIZE[0] * SIZE[1];
    let expected: Vec<f32> = image().iter().enumerate().map(|(index, &byte)| normalised(byte, index / plane)).collect();
    assert_eq!(apply(&Augment::plain(NORMALIZATION), key), expected);
    assert_eq!(apply(&Augment::new(&off, NORMALIZATION), key), expected);
}

#[test]
fn a_padding_larger_than_any_image_shows_padding_and_does_not_panic() {
    for crop_padding in [50, usize::MAX] {
        let config = DataConfig { crop_padding, cutout: 1_000, ..DataConfig::default() };
        let out = apply(&Augment::new(&config, NORMALIZATION), SampleKey { seed: 0, epoch: 0, sample: 1 });
        assert!(out.iter().all(|value| value.is_finite()));
    }
}
