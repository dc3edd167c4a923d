//! RandAugment, against what torchvision makes of a Pillow image; `tests/fixtures/augment/make.py` asked it.

use std::collections::BTreeMap;
use std::fs;

use kiln_data::Interpolation;
use kiln_data::auto_augment::{Space, Step};
use kiln_data::{Augment, DataConfig, Normalization, Operation, SampleKey, rand_augment};
use sha2::{Digest, Sha256};

use super::{key, normalized};
use crate::files::file;

const SIZE: [usize; 2] = [24, 32];

fn fixture(name: &str) -> Vec<u8> {
    fs::read(file("tests/fixtures/augment").join(name)).unwrap()
}

fn lines(name: &str) -> Vec<Vec<String>> {
    let text = String::from_utf8(fixture(name)).unwrap();
    text.lines().map(|line| line.split(' ').map(String::from).collect()).collect()
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn perform(operation: Operation, magnitude: u32, negative: bool, image: &mut [u8], size: [usize; 2]) {
    let argument = Space::RAND.argument(operation, magnitude, negative, size);
    Step { operation, argument, interpolation: Interpolation::Nearest, fill: [0; 3] }.perform(image, size);
}

fn performed(operation: Operation, magnitude: u32, negative: bool) -> Vec<u8> {
    let mut image = fixture("image.bin");
    perform(operation, magnitude, negative, &mut image, SIZE);
    image
}

/// An image after so many drawn operations.
fn varied(image: &[u8], ops: usize, magnitude: u32, fill: [u8; 3], key: SampleKey) -> Vec<u8> {
    let mut image = image.to_vec();
    rand_augment(ops, magnitude, SIZE, key).for_each(|step| Step { fill, ..step }.perform(&mut image, SIZE));
    image
}

#[test]
fn some_operations_agree_with_torchvision_byte_for_byte() {
    use Operation::{Equalize, Rotate, Sharpness, ShearX};
    let expected = fixture("operations.bin");
    let cases = [(ShearX, false), (Rotate, true), (Sharpness, false), (Equalize, false)];
    assert_eq!(expected.len(), cases.len() * 3 * SIZE[0] * SIZE[1]);
    for ((operation, negative), expected) in cases.into_iter().zip(expected.chunks_exact(3 * SIZE[0] * SIZE[1])) {
        let image = performed(operation, 9, negative);
        let other = image.iter().zip(expected).filter(|(own, expected)| own != expected).count();
        assert_eq!(other, 0, "{operation:?}: so many bytes differ");
    }
}

#[test]
fn every_operation_agrees_with_torchvision_in_every_magnitude_and_direction() {
    let expected = lines("operations.txt");
    assert_eq!(expected.len(), Operation::ALL.len());
    for (operation, line) in Operation::ALL.into_iter().zip(expected) {
        let mut hash = Sha256::new();
        for magnitude in 0..=Space::RAND.last {
            [false, true].into_iter().for_each(|negative| hash.update(performed(operation, magnitude, negative)));
        }
        assert_eq!([format!("{operation:?}"), hex(hash)], line[..]);
    }
}

#[test]
fn drawn_operations_in_a_row_agree_with_torchvision_given_the_same_draws() {
    let image = fixture("image.bin");
    for line in lines("rand_augment.txt") {
        let number = |at: usize| line[at].parse::<u32>().unwrap();
        let fill = [2, 3, 4].map(|at| number(at) as u8);
        let mut hash = Sha256::new();
        (0..100).for_each(|sample| hash.update(varied(&image, number(0) as usize, number(1), fill, key(sample))));
        assert_eq!(hex(hash), line[5], "{line:?}");
    }
}

#[test]
fn operations_and_directions_are_drawn_about_equally_often_and_independently_of_each_other() {
    let mut pairs = BTreeMap::new();
    let image = fixture("image.bin");
    let of = |operation, negative| performed(operation, 9, negative);
    let known: Vec<_> = Operation::ALL.into_iter().flat_map(|it| [of(it, false), of(it, true)]).collect();
    for sample in 0..14_000 {
        let seen = varied(&image, 1, 9, [0; 3], key(sample));
        let found = known.iter().position(|known| *known == seen).expect("one of the operations");
        *pairs.entry(found).or_insert(0) += 1;
    }
    let count = |index: usize| pairs.get(&index).copied().unwrap_or(0);
    for (index, operation) in Operation::ALL.into_iter().enumerate() {
        // Those without a direction are all found at their first position.
        let [up, down] = [count(2 * index), count(2 * index + 1)];
        assert!((880..1120).contains(&(up + down)), "{operation:?}: {up} + {down}");
        assert!(known[2 * index] == known[2 * index + 1] || (420..580).contains(&up), "{operation:?}: {up}, {down}");
    }
}

#[test]
fn images_of_any_shape_survive_every_operation() {
    for size in [[1, 1], [1, 9], [2, 3], [40, 3]] {
        for operation in Operation::ALL {
            for magnitude in [0, 30] {
                perform(operation, magnitude, true, &mut vec![200; 3 * size[0] * size[1]], size);
            }
        }
    }
}

#[test]
fn larger_magnitudes_are_the_largest() {
    let steps = |magnitude| rand_augment(4, magnitude, SIZE, key(1)).collect::<Vec<_>>();
    assert_eq!(steps(u32::MAX), steps(30));
}

#[test]
fn rand_augment_comes_before_everything_else_and_is_off_with_all_augmentation() {
    let image = fixture("image.bin");
    let config = DataConfig { rand_augment_ops: 2, rand_augment_magnitude: 20, cutout: 5, ..DataConfig::default() };
    let shown = |config: &DataConfig, image: &[u8], sample| {
        normalized(&Augment::new(config, Normalization::CIFAR10), image, SIZE, key(sample))
    };
    let without = DataConfig { rand_augment_ops: 0, ..config.clone() };
    let off = DataConfig { augment: false, ..config.clone() };
    let mut changed = 0;
    for sample in 0..50 {
        let first = varied(&image, 2, 20, [0; 3], key(sample));
        assert_eq!(shown(&config, &image, sample), shown(&without, &first, sample), "sample {sample}");
        assert_eq!(shown(&off, &image, sample), shown(&off, &image, 0), "off");
        changed += usize::from(first != image);
    }
    assert!(changed > 40);
}
