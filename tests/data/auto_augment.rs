//! Augmentation policies, against torchvision and timm given the same draws.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kiln_data::{Augment, AutoAugment, DataConfig, Interpolation, Normalization, Purpose, SampleKey};

use super::{image, key, normalized};
use crate::files::file;
use crate::python::ask;

const SIZE: [usize; 2] = [24, 32];
/// ImageNet's, with which timm fills.
const MEAN: [u8; 3] = [124, 116, 104];

fn policy(text: &str) -> AutoAugment {
    text.parse().unwrap()
}

/// All random numbers of a sample, as JSON.
fn draws(key: SampleKey) -> String {
    let of = |purpose| (0..16).map(|nth| key.fraction(purpose, nth)).collect();
    let numbers: BTreeMap<&str, Vec<f64>> = BTreeMap::from([
        ("operation", of(Purpose::RandAugmentOperation)),
        ("negative", of(Purpose::RandAugmentSign)),
        ("happens", of(Purpose::OperationProbability)),
        ("level", of(Purpose::OperationLevel)),
        ("noise", key.normals(Purpose::OperationNoise).take(16).collect()),
        ("sampling", of(Purpose::OperationSampling)),
        ("depth", of(Purpose::AugmixDepth)),
        ("share", of(Purpose::AugmixShare)),
    ]);
    serde_json::to_string(&numbers).unwrap()
}

/// Fails unless every byte of so many samples is what the library makes of them under each policy.
#[track_caller]
fn agree(policies: &[&str], samples: u32) {
    let place = tempfile::tempdir().unwrap();
    let listed = place.path().join("drawn.txt");
    fs::write(&listed, (0..samples).map(|sample| draws(key(sample))).collect::<Vec<_>>().join("\n")).unwrap();
    let words = policies.join(" ");
    let arguments = [&file("tests/fixtures/augment"), Path::new(&words), &listed];
    let Some(said) = ask("torchvision, timm.data", "augment/policies.py", &arguments) else { return };
    let expected: Vec<&str> = said.lines().collect();
    assert_eq!(expected.len(), policies.len() * samples as usize);
    for (text, expected) in policies.iter().zip(expected.chunks(samples as usize)) {
        let mut changed = 0;
        for (sample, expected) in (0..).zip(expected) {
            let varied = policy(text).apply(&image(), SIZE, MEAN, None, key(sample));
            let hex: String = varied.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(hex == *expected, "{text}, sample {sample}: {}", draws(key(sample)));
            changed += u32::from(varied != image());
        }
        assert!(2 * changed > samples, "{text} changes {changed} of {samples}");
    }
}

#[test]
fn trivial_augment_agrees_with_torchvision_byte_for_byte() {
    // 14 operations on 31 levels in two directions.
    agree(&["ta_wide"], 3000);
}

#[test]
fn learned_policies_agree_with_torchvision_byte_for_byte() {
    // 25 pairs, of which each operation happens or not, in either direction.
    agree(&["imagenet", "cifar10"], 1500);
}

#[test]
fn augmix_agrees_with_torchvision_on_pillow_images_byte_for_byte() {
    agree(&["augmix", "augmix-s10"], 400);
}

#[test]
fn rand_augment_of_timm_agrees_with_timm_byte_for_byte() {
    let policies = [
        "rand-m9-mstd0.5-inc1",
        "rand-m9-n3-mstd0.5",
        "rand-m7-p1",
        "rand-m20-mmax30-p0.9-inc1",
        "rand-m30-mmax30-n1-p1.0-inc0",
        "rand-mstd101-n4-p0.8",
    ];
    agree(&policies, 500);
}

#[test]
fn policies_are_read_and_written_as_text() {
    let same = ["", "ta_wide", "imagenet", "cifar10", "augmix", "augmix-s1", "augmix-s10", "rand-m9-mstd0.5-inc1"];
    for text in same.into_iter().chain(["rand-m9-n3-mstd0.5", "rand-m9-mstd101-p0.25-mmax12", "rand-m0"]) {
        assert_eq!(policy(text).to_string(), text);
        let setting = format!(r#"{{"auto_augment": "{text}"}}"#);
        assert_eq!(serde_json::from_str::<DataConfig>(&setting).unwrap().auto_augment, policy(text));
    }
    let usual = [("augmix-s3", "augmix"), ("rand", "rand-m10"), ("rand-inc0-n2-m9-p0.5-mmax10", "rand-m9")];
    usual.into_iter().for_each(|(text, short)| assert_eq!(policy(text).to_string(), short));
    let refused =
        ["none", "randaugment", "ra", "rand-", "rand-m9-tweights", "rand-m9-w0", "rand-m", "rand-m1.5", "rand-p2"];
    for text in refused.into_iter().chain(["rand-n0", "rand-inc2", "rand-m-9", "augmix-s0", "augmix-s11", "augmix-m5"])
    {
        let fault = text.parse::<AutoAugment>().expect_err(text);
        assert!(fault.starts_with("ta_wide, imagenet, cifar10, augmix"), "{fault}");
    }
}

/// What Python does not judge: that draws are what they should be.
#[test]
fn operations_happen_as_often_as_asked_and_depend_on_the_key_only() {
    let changed = |text: &str| {
        (0..2000).filter(|sample| policy(text).apply(&image(), SIZE, MEAN, None, key(*sample)) != image()).count()
    };
    assert_eq!(changed(""), 0);
    assert_eq!(changed("rand-m9-p0"), 0);
    // Inversion and equalising always change this image.
    let [rare, often] = [changed("rand-m9-n1-p0.1"), changed("rand-m9-n1-p0.9")];
    assert!((140..240).contains(&rare) && (1600..1900).contains(&often), "{rare}, {often}");
    let shown = |sample| policy("augmix").apply(&image(), SIZE, MEAN, None, key(sample));
    assert!(shown(1) == shown(1) && shown(1) != shown(2));
}

#[test]
fn noise_is_normal() {
    let noise: Vec<f64> = (0..4000).flat_map(|sample| key(sample).normals(Purpose::OperationNoise).take(2)).collect();
    let mean = |of: &dyn Fn(f64) -> f64| noise.iter().map(|it| of(*it)).sum::<f64>() / noise.len() as f64;
    assert!(mean(&|it| it).abs() < 0.04 && (mean(&|it| it * it) - 1.0).abs() < 0.06);
    assert!((mean(&|it| f64::from(it.abs() < 1.0)) - 0.6827).abs() < 0.02);
}

#[test]
fn a_policy_comes_before_everything_else_and_is_off_with_all_augmentation() {
    let config = DataConfig { auto_augment: policy("rand-m9-mstd0.5"), cutout: 5, ..DataConfig::default() };
    let shown = |config: &DataConfig, image: &[u8], sample| {
        normalized(&Augment::new(config, Normalization::IMAGENET), image, SIZE, key(sample))
    };
    let without = DataConfig { auto_augment: AutoAugment::None, ..config.clone() };
    let off = DataConfig { augment: false, ..config.clone() };
    for sample in 0..50 {
        let first = config.auto_augment.apply(&image(), SIZE, MEAN, None, key(sample));
        assert_eq!(shown(&config, &image(), sample), shown(&without, &first, sample), "sample {sample}");
        assert_eq!(shown(&off, &image(), sample), shown(&off, &image(), 0), "off");
    }
}

#[test]
fn operations_interpolate_as_training_images_if_those_have_a_filter() {
    let shown = |filter, sample| policy("rand-m9-n1").apply(&image(), SIZE, MEAN, filter, key(sample));
    let mut turned = 0;
    for sample in 0..200 {
        let each = [Interpolation::Bilinear, Interpolation::Bicubic].map(|filter| shown(Some(filter), sample));
        assert!(each.contains(&shown(None, sample)), "sample {sample}");
        turned += usize::from(each[0] != each[1]);
    }
    assert!(turned > 10, "{turned} of 200 are transformed");
}

#[test]
fn images_of_any_shape_survive_every_policy() {
    for size in [[1, 1], [1, 9], [2, 3], [40, 3]] {
        for text in ["ta_wide", "imagenet", "cifar10", "augmix-s10", "rand-m30-mmax30-n4-p1-mstd5-inc1"] {
            for sample in 0..200 {
                let image = vec![200; 3 * size[0] * size[1]];
                assert_eq!(policy(text).apply(&image, size, MEAN, None, key(sample)).len(), image.len());
            }
        }
    }
}
