//! Colour jitter, against what torchvision makes of a Pillow image with the same order and factors.

use std::collections::BTreeSet;
use std::fs;

use kiln::data::{Augment, ColorJitter, DataConfig, Key, Normalization};

use super::repository;
use crate::python::ask;

const SIZE: [usize; 2] = [24, 32];

fn image() -> Vec<u8> {
    fs::read(repository("tests/fixtures/augment/image.bin")).unwrap()
}

fn key(sample: u32) -> Key {
    Key { seed: 3, epoch: 5, sample }
}

#[test]
fn images_are_varied_as_by_torchvision_byte_for_byte() {
    let jitter = ColorJitter { strength: 0.8 };
    let drawn: Vec<_> = (0..40).map(|sample| jitter.draw(key(sample))).collect();
    let line = |drawn: &[(_, f64); 3]| drawn.map(|(property, factor)| format!("{property:?} {factor:?}")).join(" ");
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("drawn.txt");
    fs::write(&file, drawn.iter().map(line).collect::<Vec<_>>().join("\n")).unwrap();
    let Some(said) = ask("torchvision", "augment/color_jitter.py", &[&repository("tests/fixtures/augment"), &file])
    else {
        return;
    };
    let expected: Vec<&str> = said.lines().collect();
    assert_eq!(expected.len(), drawn.len());
    for (sample, expected) in (0..).zip(expected) {
        let mut varied = image();
        jitter.apply(&mut varied, key(sample));
        let hex: String = varied.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(hex == expected, "sample {sample}: {:?}", jitter.draw(key(sample)));
    }
}

#[test]
fn every_order_is_drawn_and_factors_fill_their_range() {
    let drawn: Vec<_> = (0..2000).map(|sample| ColorJitter { strength: 0.4 }.draw(key(sample))).collect();
    let orders: BTreeSet<String> = drawn.iter().map(|it| format!("{:?}", it.map(|(property, _)| property))).collect();
    assert_eq!(orders.len(), 6);
    for place in 0..3 {
        let factors = drawn.iter().map(|it| it[place].1);
        let (least, most) = factors.fold((f64::MAX, f64::MIN), |(least, most), it| (least.min(it), most.max(it)));
        assert!((0.6..0.61).contains(&least) && (1.39..1.4).contains(&most), "{least} to {most}");
    }
}

#[test]
fn only_training_images_are_varied_and_only_if_asked() {
    let normalization = Normalization { mean: [0.5; 3], std: [0.25; 3] };
    let shown = |config: &DataConfig| Augment::new(config, normalization).normalized(&image(), SIZE, key(1));
    let config = DataConfig { color_jitter: 0.4, ..DataConfig::default() };
    let without = DataConfig { color_jitter: 0.0, ..config.clone() };
    assert_ne!(shown(&config), shown(&without));
    let plain = Augment::plain(normalization).normalized(&image(), SIZE, key(1));
    assert_eq!(shown(&DataConfig { augment: false, ..config }), plain);
}
