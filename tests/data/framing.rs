//! What of a picture is shown: the middle, or random parts.

use std::path::{Path, PathBuf};

use image::imageops::{FilterType, crop_imm, resize};
use image::{Rgb, RgbImage};
use kiln_data::{
    CropBox, DataConfig, Framing, ImageSet, Interpolation, SampleKey, Source, TrainInterpolation, fingerprint,
};
use tempfile::{TempDir, tempdir};

use super::load;
use crate::python::ask;

const SIDE: usize = 28;
const RANDOM: Framing = Framing { middle: 0.875, area: 0.08, ..Framing::WHOLE };

fn key(sample: u32) -> SampleKey {
    SampleKey { seed: 3, epoch: 1, sample }
}

/// Waves of several lengths.
fn picture(path: &Path, width: u32, height: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let wave = |at: f64| (127.5 + 127.0 * at.sin()) as u8;
    let pixel = |x: u32, y: u32| {
        let (x, y) = (f64::from(x), f64::from(y));
        Rgb([wave(0.3 * x), wave(0.2 * y + 0.05 * x), wave(0.01 * x * y)])
    };
    RgbImage::from_fn(width, height, pixel).save(path).unwrap();
}

/// One picture to learn from and one to measure on.
fn photographs(width: u32, height: u32) -> TempDir {
    let dir = tempdir().unwrap();
    for path in ["train/it/a.png", "val/it/a.png"] {
        picture(&dir.path().join(path), width, height);
    }
    dir
}

fn config(dir: &Path) -> DataConfig {
    let dir = PathBuf::from(dir);
    let (source, image_size) = (Source::Folder, SIDE);
    DataConfig { source, dir, image_size, resized_crop: 0.08, center_crop: 0.875, ..DataConfig::default() }
}

/// Our bytes against torchvision's, to one level of 255; false where there is no torchvision.
#[track_caller]
fn agree(ours: &[u8], file: &Path, kind: &str, numbers: &str) -> bool {
    let side = SIDE.to_string();
    let arguments = [file, Path::new(&side), Path::new(kind), Path::new(numbers)];
    let Some(theirs) = ask("torchvision, PIL", "framing.py", &arguments) else { return false };
    let theirs: Vec<u8> = serde_json::from_str(&theirs).unwrap();
    assert_eq!(ours.len(), theirs.len());
    let largest = ours.iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(largest <= 1, "{kind} {numbers}: off by {largest} of 255");
    true
}

/// Fails unless our bytes are torchvision's with that interpolation; false where there is no torchvision.
#[track_caller]
fn equal(ours: &[u8], file: &Path, numbers: [&str; 2], interpolation: Interpolation) -> bool {
    let (side, name) = (SIDE.to_string(), format!("{interpolation:?}").to_lowercase());
    let arguments = [file, Path::new(&side), Path::new(numbers[0]), Path::new(numbers[1]), Path::new(&name)];
    let Some(theirs) = ask("torchvision, PIL", "framing.py", &arguments) else { return false };
    let theirs: Vec<u8> = serde_json::from_str(&theirs).unwrap();
    let other = ours.iter().zip(&theirs).filter(|(a, b)| a != b).count();
    assert_eq!((ours.len(), other), (theirs.len(), 0), "{name} {numbers:?}");
    true
}

/// The bytes of a picture that the crate `image` crops and resizes to a square.
fn reference(picture: &RgbImage, part: CropBox, [width, height]: [u32; 2]) -> Vec<u8> {
    let part = crop_imm(picture, part.left, part.top, part.width, part.height).to_image();
    let image = resize(&part, width, height, FilterType::Triangle);
    let [left, top] = [width, height].map(|length| (f64::from(length - SIDE as u32) / 2.0).round_ties_even() as u32);
    let square = crop_imm(&image, left, top, SIDE as u32, SIDE as u32).to_image();
    (0..3).flat_map(|channel| square.pixels().map(move |pixel| pixel.0[channel]).collect::<Vec<_>>()).collect()
}

#[test]
fn parts_are_resized_to_the_bytes_of_the_crate_image() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.png");
    for [width, height] in [[1, 1], [28, 28], [28, 300], [300, 28], [91, 64], [7, 500], [500, 375], [29, 27]] {
        picture(&path, width, height);
        let image = image::open(&path).unwrap().into_rgb8();
        let shown = |framing, key| {
            let set = ImageSet::from_files(std::slice::from_ref(&path), SIDE, framing).unwrap();
            match key {
                None => set.image(0).unwrap(),
                Some(key) => {
                    let planes: Vec<u8> = (0..3).flat_map(|c| image.pixels().map(move |it| it.0[c])).collect();
                    let size = [height as usize, width as usize];
                    let set = ImageSet::new(planes, vec![0], vec!["it".into()], size).unwrap();
                    set.framed(SIDE, framing, 0).picture(0).shown(Some(key)).unwrap()
                }
            }
        };
        let whole = CropBox { left: 0, top: 0, width, height };
        assert_eq!(shown(Framing::WHOLE, None), reference(&image, whole, [SIDE as u32; 2]), "{width}x{height}");
        for sample in 0..40 {
            let part = RANDOM.part([width, height], key(sample));
            assert_eq!(shown(RANDOM, Some(key(sample))), reference(&image, part, [SIDE as u32; 2]), "{part:?}");
        }
        if width.max(height) <= 4 * width.min(height) {
            let scaled = |length: u32| (32 * u64::from(length) / u64::from(width.min(height))) as u32;
            let size = [scaled(width), scaled(height)];
            assert_eq!(
                shown(Framing { area: 0.0, ..RANDOM }, None),
                reference(&image, whole, size),
                "{width}x{height}"
            );
        }
    }
}

#[test]
fn the_middle_is_that_of_torchvision() {
    for [width, height] in [[50, 33], [33, 50], [41, 41], [300, 97], [20, 25]] {
        let dir = photographs(width, height);
        let images = load(&config(dir.path())).unwrap().validation;
        if !agree(&images.image(0).unwrap(), &dir.path().join("val/it/a.png"), "middle", "0.875") {
            return;
        }
    }
}

#[test]
fn a_random_part_is_resized_as_by_torchvision() {
    let dir = photographs(90, 64);
    let images = load(&config(dir.path())).unwrap().train;
    for sample in [0, 7, 8] {
        let key = SampleKey { epoch: sample, ..key(0) };
        let CropBox { left, top, width, height } = RANDOM.part([90, 64], key);
        let numbers = format!("{left},{top},{width},{height}");
        if !agree(&images.picture(0).shown(Some(key)).unwrap(), &dir.path().join("train/it/a.png"), "part", &numbers) {
            return;
        }
    }
}

#[test]
fn bicubic_and_nearest_pixels_are_those_of_pillow_byte_for_byte() {
    // Each takes two programs of Python.
    let larger = [Interpolation::Bicubic, Interpolation::Nearest].map(|it| (it, [90, 64]));
    for (interpolation, [width, height]) in larger.into_iter().chain([(Interpolation::Bicubic, [20, 25])]) {
        let dir = photographs(width, height);
        let config = DataConfig { interpolation, ..config(dir.path()) };
        let splits = load(&config).unwrap();
        let [train, val] = ["train/it/a.png", "val/it/a.png"].map(|path| dir.path().join(path));
        let middle = splits.validation.image(0).unwrap();
        let plain = load(&DataConfig { interpolation: Interpolation::Bilinear, ..config.clone() }).unwrap();
        assert_ne!(middle, plain.validation.image(0).unwrap(), "another filter");
        if !equal(&middle, &val, ["middle", "0.875"], interpolation) {
            return;
        }
        let key = SampleKey { epoch: 3, ..key(0) };
        let CropBox { left, top, width, height } = RANDOM.part([width, height], key);
        let numbers = format!("{left},{top},{width},{height}");
        equal(&splits.train.picture(0).shown(Some(key)).unwrap(), &train, ["part", &numbers], interpolation);
    }
}

#[test]
fn training_images_may_have_a_filter_of_their_own_or_one_of_two_at_random() {
    let dir = photographs(90, 64);
    let of = |train_interpolation, interpolation, augment| {
        load(&DataConfig { train_interpolation, interpolation, augment, ..config(dir.path()) }).unwrap()
    };
    let shown = |train, validation, sample| {
        let splits = of(train, validation, true);
        splits.train.picture(0).shown(Some(key(sample))).unwrap()
    };
    let [linear, cubic] = [Interpolation::Bilinear, Interpolation::Bicubic];
    let mut cubics = 0;
    for sample in 0..40 {
        let each = [linear, cubic].map(|filter| shown(TrainInterpolation::Same, filter, sample));
        assert_eq!(shown(TrainInterpolation::Bicubic, linear, sample), each[1]);
        let drawn = shown(TrainInterpolation::Random, Interpolation::Nearest, sample);
        assert!(each.contains(&drawn), "sample {sample}");
        cubics += usize::from(drawn == each[1]);
    }
    assert!((10..=30).contains(&cubics), "{cubics} of 40");
    let [plain, random] = [TrainInterpolation::Same, TrainInterpolation::Random].map(|train| of(train, cubic, false));
    assert_eq!(random.validation.image(0).unwrap(), plain.validation.image(0).unwrap());
    assert_eq!(random.train.image(0).unwrap(), plain.train.image(0).unwrap(), "nothing is drawn without augmentation");
}

#[test]
fn every_interpolation_takes_every_size_and_keeps_images_that_fit() {
    for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic, Interpolation::Nearest] {
        for [width, height] in [[1, 1], [28, 28], [7, 500], [1, 90]] {
            let dir = photographs(width, height);
            let images = load(&DataConfig { interpolation, center_crop: 1.0, ..config(dir.path()) }).unwrap();
            let shown = images.validation.image(0).unwrap();
            assert_eq!(shown.len(), 3 * SIDE * SIDE);
            (0..20).for_each(|sample| {
                assert_eq!(images.train.picture(0).shown(Some(key(sample))).unwrap().len(), shown.len());
            });
            if [width, height] == [28, 28] {
                let picture = image::open(dir.path().join("val/it/a.png")).unwrap().into_rgb8();
                assert_eq!(shown, reference(&picture, CropBox { left: 0, top: 0, width, height }, [28, 28]));
            }
        }
    }
}

#[test]
fn random_parts_have_the_areas_and_ratios_that_are_asked_for() {
    let (mut areas, mut seen) = (Vec::new(), std::collections::BTreeSet::new());
    for sample in 0..2000 {
        let part = RANDOM.part([500, 375], key(sample));
        assert!(part.left + part.width <= 500 && part.top + part.height <= 375, "{part:?}");
        let (width, height) = (f64::from(part.width), f64::from(part.height));
        let (area, ratio) = (width * height / (500.0 * 375.0), width / height);
        // Sides are whole pixels.
        assert!((0.079..=1.0).contains(&area) && (0.74..=1.35).contains(&ratio), "{part:?}");
        areas.push(area);
        seen.insert((part.left, part.top));
    }
    // Uniform in 0.08..1, of which the largest seldom fit.
    let mean = areas.iter().sum::<f64>() / areas.len() as f64;
    assert!((0.40..0.46).contains(&mean), "{mean}");
    assert!(areas.iter().any(|area| *area < 0.1) && areas.iter().any(|area| *area > 0.9));
    assert!(seen.len() > 1500);
}

/// By torchvision's rule: where no attempt fits, the middle, as near to the ratios as it goes.
#[test]
fn a_picture_that_is_too_long_shows_its_middle() {
    let whole = Framing { area: 1.0, ..RANDOM };
    let part = |size| whole.part(size, key(0));
    assert_eq!(part([300, 30]), CropBox { left: 130, top: 0, width: 40, height: 30 });
    assert_eq!(part([30, 300]), CropBox { left: 0, top: 130, width: 30, height: 40 });
    let dir = photographs(3000, 2);
    let splits = load(&config(dir.path())).unwrap();
    assert_eq!(splits.validation.image(0).unwrap().len(), 3 * SIDE * SIDE);
    assert_eq!(splits.train.picture(0).shown(Some(key(0))).unwrap().len(), 3 * SIDE * SIDE);
}

#[test]
fn what_is_shown_depends_on_nothing_but_its_key() {
    let dir = photographs(64, 48);
    let shown = |config: &DataConfig, key| load(config).unwrap().train.picture(0).shown(Some(key)).unwrap();
    let config = config(dir.path());
    assert!(shown(&config, key(5)) == shown(&DataConfig { cache_mb: 0, ..config.clone() }, key(5)));
    assert!(shown(&config, key(5)) != shown(&config, key(6)));
    let plain = DataConfig { augment: false, ..config.clone() };
    assert!(shown(&plain, key(5)) == shown(&plain, key(6)), "varied images only");
    assert_eq!(fingerprint(&load(&config).unwrap()), fingerprint(&load(&plain).unwrap()));
}

/// Images in memory are framed like those in files.
#[test]
fn images_of_any_source_are_framed() {
    let dir = photographs(40, 40);
    let file = load(&DataConfig { resized_crop: 0.0, ..config(dir.path()) }).unwrap().validation;
    let pixels = load(&DataConfig { image_size: 40, resized_crop: 0.0, center_crop: 0.0, ..config(dir.path()) });
    let pixels = pixels.unwrap().validation.image(0).unwrap();
    let memory = || ImageSet::new(pixels.clone(), vec![0], vec!["it".into()], [40; 2]).unwrap();
    for limit in [0, 4096] {
        let framed = memory().framed(SIDE, Framing { area: 0.0, ..RANDOM }, limit);
        assert!(framed.image(0).unwrap() == file.image(0).unwrap());
    }
    let random = memory().framed(SIDE, RANDOM, 4096);
    assert!(random.picture(0).shown(Some(key(1))).unwrap() != random.picture(0).shown(Some(key(2))).unwrap());
}
