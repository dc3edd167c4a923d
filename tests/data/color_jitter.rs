//! Colour jitter, against what torchvision makes of a Pillow image with the same order and factors.

use std::collections::BTreeSet;
use std::fs;

use kiln_data::{Augment, ColorJitter, DataConfig, Normalization, Operation};

use super::{image, key, normalized};
use crate::files::file;
use crate::python::ask;

const SIZE: [usize; 2] = [24, 32];

#[test]
fn images_are_varied_as_by_torchvision_byte_for_byte() {
    let jitter = ColorJitter { strength: 0.8, hue: 0.5 };
    let drawn: Vec<_> = (0..40).map(|sample| jitter.draw(key(sample))).collect();
    let line = |drawn: &Vec<(Operation, f64)>| {
        drawn.iter().map(|(operation, factor)| format!("{operation:?} {factor:?}")).collect::<Vec<_>>().join(" ")
    };
    let place = tempfile::tempdir().unwrap();
    let listed = place.path().join("drawn.txt");
    fs::write(&listed, drawn.iter().map(line).collect::<Vec<_>>().join("\n")).unwrap();
    let Some(said) = ask("torchvision", "augment/color_jitter.py", &[&file("tests/fixtures/augment"), &listed]) else {
        return;
    };
    let expected: Vec<&str> = said.lines().collect();
    assert_eq!(expected.len(), drawn.len());
    for (sample, expected) in (0..).zip(expected) {
        let mut varied = image();
        jitter.apply(&mut varied, SIZE, key(sample));
        let hex: String = varied.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(hex == expected, "sample {sample}: {:?}", jitter.draw(key(sample)));
    }
}

#[test]
fn every_order_is_drawn_and_factors_fill_their_range() {
    for (hue, count) in [(0.0, 6), (0.1, 24)] {
        let drawn: Vec<_> = (0..2000).map(|sample| ColorJitter { strength: 0.4, hue }.draw(key(sample))).collect();
        let order =
            |drawn: &Vec<(Operation, f64)>| drawn.iter().map(|(operation, _)| format!("{operation:?} ")).collect();
        assert_eq!(drawn.iter().map(order).collect::<BTreeSet<String>>().len(), count);
        for (operation, [low, high]) in [(Operation::Contrast, [0.6, 1.4]), (Operation::Hue, [-hue, hue])] {
            let factors = drawn.iter().flatten().filter(|it| it.0 == operation).map(|it| it.1);
            let (least, most) = factors.fold((high, low), |(least, most), it| (least.min(it), most.max(it)));
            assert!(least >= low && most <= high && most - least >= 0.99 * (high - low), "{least} to {most}");
        }
    }
}

#[test]
fn the_hue_changes_nothing_of_the_rest() {
    let [without, with] = [0.0, 0.2].map(|hue| ColorJitter { strength: 0.4, hue }.draw(key(1)));
    assert_eq!(without, with.iter().copied().filter(|(operation, _)| *operation != Operation::Hue).collect::<Vec<_>>());
}

#[test]
fn a_third_of_the_circle_turns_red_to_green_or_blue_and_grey_stays() {
    // Red, its half, yellow, grey, and what Pillow 13 makes of them with a hue of 85 of 255 more or less.
    let pixels = [[255, 0, 0], [128, 0, 0], [255, 255, 0], [90, 90, 90]];
    let planes = |pixels: [[u8; 3]; 4]| (0..3).flat_map(|plane| pixels.map(|pixel| pixel[plane])).collect::<Vec<u8>>();
    let (jitter, mut seen) = (ColorJitter { strength: 0.0, hue: 0.5 }, 0);
    for sample in 0..2000 {
        let turned = jitter.draw(key(sample)).iter().find(|it| it.0 == Operation::Hue).unwrap().1 * 255.0;
        let expected = match turned as i32 {
            85 => [[0, 255, 0], [0, 128, 0], [0, 255, 252], [90; 3]],
            -85 => [[6, 0, 255], [3, 0, 128], [255, 0, 252], [90; 3]],
            _ => continue,
        };
        let mut image = planes(pixels);
        jitter.apply(&mut image, [2, 2], key(sample));
        assert_eq!(image, planes(expected), "turned by {turned}");
        seen += 1;
    }
    assert!(seen > 2);
}

#[test]
fn only_training_images_are_varied_and_only_if_asked() {
    let normalization = Normalization { mean: [0.5; 3], std: [0.25; 3] };
    let shown = |config: &DataConfig| normalized(&Augment::new(config, normalization), &image(), SIZE, key(1));
    let config = DataConfig { color_jitter: 0.4, ..DataConfig::default() };
    let without = DataConfig { color_jitter: 0.0, ..config.clone() };
    assert_ne!(shown(&config), shown(&without));
    assert_ne!(shown(&DataConfig { hue_jitter: 0.3, ..without.clone() }), shown(&without));
    let plain = normalized(&Augment::plain(normalization), &image(), SIZE, key(1));
    assert_eq!(shown(&DataConfig { augment: false, ..config }), plain);
}
