//! The drawn data set: reproducible to the byte, balanced, and the origin of the sample in `data/`.

use kiln_data::synthetic::{CLASSES, NORMALIZATION, Split, draw};
use kiln_data::{DataConfig, ImageSet, Source, fingerprint};

use super::{assert_names, load};
use crate::files::file;

#[test]
fn the_sample_in_the_repository_is_what_the_generator_draws() {
    for (name, split, len) in [("data_batch_1.bin", Split::Train, 512), ("test_batch.bin", Split::Validation, 128)] {
        let stored = std::fs::read(file("data").join(name)).expect("the sample");
        let images = draw(split, len).expect("images");
        let record = |id| [vec![images.label(id) as u8], images.image(id).expect("an image in memory")].concat();
        let drawn: Vec<u8> = (0..len as u32).flat_map(record).collect();
        assert!(stored == drawn, "data/{name} differs from the generator: a new generator needs a new sample");
    }
    let names = std::fs::read_to_string(file("data/batches.meta.txt")).expect("the names");
    assert_eq!(names.lines().collect::<Vec<_>>(), CLASSES);
}

#[test]
fn a_longer_set_begins_with_the_shorter_one_and_the_splits_differ() {
    let (short, long) = (draw(Split::Train, 10).expect("images"), draw(Split::Train, 25).expect("images"));
    assert!((0..10).all(|id| short.image(id).unwrap() == long.image(id).unwrap() && short.label(id) == id));
    assert_ne!(short.image(0).unwrap(), draw(Split::Validation, 1).expect("an image").image(0).unwrap());
}

#[test]
fn the_normalization_constants_describe_the_drawings() {
    let images = draw(Split::Train, 3_000).expect("images");
    for channel in 0..3 {
        let plane = |id: u32| images.image(id).unwrap()[channel * 1024..][..1024].to_vec();
        let pixels: Vec<f64> = (0..3_000).flat_map(plane).map(|byte| f64::from(byte) / 255.0).collect();
        let mean = pixels.iter().sum::<f64>() / pixels.len() as f64;
        let variance = pixels.iter().map(|pixel| (pixel - mean).powi(2)).sum::<f64>() / pixels.len() as f64;
        assert!((mean - f64::from(NORMALIZATION.mean[channel])).abs() < 0.01, "mean {mean}");
        assert!((variance.sqrt() - f64::from(NORMALIZATION.std[channel])).abs() < 0.01, "std {}", variance.sqrt());
    }
}

#[test]
fn the_class_cannot_be_read_from_the_mean_colour() {
    let images = draw(Split::Train, 4_000).expect("images");
    let mean = |class: u32| {
        let of_class = (0..4_000).filter(|&id| images.label(id) == class);
        let bytes: Vec<f64> =
            of_class.flat_map(|id| images.image(id).unwrap().to_vec().into_iter().map(f64::from)).collect();
        bytes.iter().sum::<f64>() / bytes.len() as f64
    };
    let means: Vec<f64> = (0..10).map(mean).collect();
    let spread = means.iter().cloned().fold(f64::MIN, f64::max) - means.iter().cloned().fold(f64::MAX, f64::min);
    assert!(spread < 12.0, "class means lie {spread} of 255 apart");
}

#[test]
fn a_fingerprint_tells_one_data_set_from_another() {
    let of = |train_size| {
        let config = DataConfig { source: Source::Synthetic, train_size, val_size: 10, ..DataConfig::default() };
        fingerprint(&load(&config).expect("drawn images"))
    };
    assert_eq!(of(20), of(20));
    assert_ne!(of(20), of(21));
    assert!(of(20).len() == 16 && of(20).bytes().all(|digit| digit.is_ascii_hexdigit()));
}

#[test]
fn a_set_of_no_image_is_refused() {
    let config = DataConfig { source: Source::Synthetic, val_size: 0, ..DataConfig::default() };
    let error = load(&config).expect_err("no validation image");
    assert_names(&error.to_string(), &["data.val_size", "'0'"]);
}

#[test]
fn images_that_do_not_fit_their_labels_are_refused() {
    let classes = || vec!["a".to_owned(), "b".to_owned()];
    assert!(ImageSet::new(vec![0; 24], vec![0, 1], classes(), [2, 2]).is_ok());
    let bytes = ImageSet::new(vec![0; 23], vec![0, 1], classes(), [2, 2]).expect_err("a byte is missing");
    assert_names(&bytes.to_string(), &["'23'", "3x2x2"]);
    let label = ImageSet::new(vec![0; 24], vec![0, 2], classes(), [2, 2]).expect_err("no such class");
    assert_names(&label.to_string(), &["label '2'", "2 classes"]);
    assert!(ImageSet::new(vec![], vec![0], classes(), [0, 2]).is_err(), "an image without a pixel");
}

#[test]
fn burns_loaders_can_read_the_images_too() {
    use burn_dataset::Dataset;
    let images = draw(Split::Validation, 3).unwrap();
    assert_eq!(Dataset::len(&images), 3);
    let picture = images.get(2).unwrap();
    assert_eq!((picture.label, picture.shown(None).unwrap()), (images.label(2), images.image(2).unwrap()));
    assert_eq!(images.get(3), None);
}
