//! JPEGs of every layout, whole and in parts: the bytes of PIL's image, or of the smaller one that it drafts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kiln_data::{CropBox, DataConfig, DataSplits, Decode, Exif, Framing, ImageSet, SampleKey, Source, fingerprint};
use serde_json::json;
use tempfile::{TempDir, tempdir};

use super::load;
use crate::files::file;
use crate::python::ask;

const SIDE: usize = 40;

/// JPEGs in `jpg`, and what PIL makes of them in `png`; `None` without PIL.
fn pictures() -> Option<TempDir> {
    let dir = tempdir().unwrap();
    ask("PIL, numpy", "images/jpegs.py", &[dir.path()])?;
    Some(dir)
}

fn splits(dir: &Path, decode: Decode, exif: Exif) -> DataSplits {
    let (source, dir, image_size) = (Source::Folder, dir.to_path_buf(), SIDE);
    let parts = DataConfig { resized_crop: 0.08, center_crop: 0.875, ..DataConfig::default() };
    load(&DataConfig { source, dir, image_size, decode, exif, ..parts }).unwrap()
}

/// Every training image in `parts` random parts, then the validation images.
fn shown(splits: &DataSplits, parts: usize) -> Vec<Vec<u8>> {
    let keys = (0..parts).map(|epoch| SampleKey { seed: 1, epoch, sample: 0 });
    let train = (0..splits.train.len() as u32).flat_map(|id| {
        keys.clone().map(move |key| splits.train.picture(id).shown(Some(SampleKey { sample: id, ..key })))
    });
    let validation = (0..splits.validation.len() as u32).map(|id| splits.validation.image(id));
    train.chain(validation).map(Result::unwrap).collect()
}

/// The largest and the mean difference.
fn difference(ours: &[Vec<u8>], theirs: &[Vec<u8>]) -> (u8, f64) {
    assert_eq!(ours.len(), theirs.len());
    let pairs = ours.iter().flatten().zip(theirs.iter().flatten());
    let differences: Vec<u8> = pairs.map(|(a, b)| a.abs_diff(*b)).collect();
    let sum: f64 = differences.iter().map(|it| f64::from(*it)).sum();
    (differences.iter().copied().max().unwrap(), sum / differences.len() as f64)
}

/// A picture, enlarged so that no pixel is lost, or the middle of it; or why it is refused.
fn read(path: &Path, decode: Decode, middle: f64) -> Result<Vec<u8>, String> {
    let framing = Framing { decode, middle, ..Framing::WHOLE };
    let set = ImageSet::from_files(&[path.to_path_buf()], 96, framing).map_err(|error| error.to_string())?;
    set.image(0).map_err(|error| error.to_string())
}

/// Holds a JPEG against the PNG beside it, which is what PIL makes of it. Returns whether it is refused.
fn is_refused_or_equal(path: &Path) -> bool {
    let picture = path.with_extension("png");
    for (decode, middle) in [(Decode::Whole, 0.0), (Decode::Part, 0.7)] {
        match read(path, decode, middle) {
            Ok(ours) => assert!(ours == read(&picture, decode, middle).unwrap(), "{} {decode:?}", path.display()),
            Err(reason) => {
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(reason.contains(&format!("{name}' ")) && reason.lines().count() == 1, "{reason}");
                return true;
            }
        }
    }
    false
}

#[test]
fn every_sampling_order_of_scans_and_restart_interval_has_pils_pixels() {
    let dir = tempdir().unwrap();
    if ask("PIL, numpy", "images/layouts.py", &[dir.path()]).is_none() {
        return;
    }
    for name in ["arithmetic.jpg", "zeros-at-end.jpg"] {
        fs::copy(file("tests/fixtures/images").join(name), dir.path().join(name)).unwrap();
    }
    let found = ask("PIL", "images/as_pil.py", &[dir.path()]).unwrap();
    let found: BTreeMap<String, bool> = serde_json::from_str(&found).unwrap();
    assert!(found.len() > 1500 && found.values().filter(|is_read| **is_read).count() > 1500);
    for (name, is_read) in &found {
        assert_eq!(is_refused_or_equal(&dir.path().join(name)), !is_read, "{name}");
    }
}

#[test]
fn damage_in_the_coded_data_is_named_or_changes_nothing_that_pil_does_not_change() {
    let Some(dir) = pictures() else { return };
    let damaged = tempdir().unwrap();
    let mut paths = Vec::new();
    for kind in ["plain", "restarts", "progressive", "half-chroma"] {
        let whole = fs::read(dir.path().join(format!("jpg/train/it/{kind}-150.jpg"))).unwrap();
        let scan = whole.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap() + 14;
        for at in (scan..whole.len() - 2).step_by(whole.len() / 60) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            paths.push(damaged.path().join(format!("{kind}-{at}.jpg")));
            fs::write(paths.last().unwrap(), bytes).unwrap();
        }
    }
    ask("PIL", "images/as_pil.py", &[damaged.path()]).unwrap();
    let refused = paths.iter().filter(|path| is_refused_or_equal(path)).count();
    assert!(refused > 5 && refused < paths.len(), "{refused} of {}", paths.len());
}

#[test]
fn a_part_has_the_bytes_of_pils_whole_image() {
    let Some(dir) = pictures() else { return };
    let [jpegs, theirs] = ["jpg", "png"].map(|kind| dir.path().join(kind));
    let theirs = shown(&splits(&theirs, Decode::Whole, Exif::Ignore), 30);
    for decode in [Decode::Whole, Decode::Part] {
        assert_eq!(difference(&shown(&splits(&jpegs, decode, Exif::Ignore), 30), &theirs), (0, 0.0));
    }
    // Images that must be turned, which are decoded whole; all others are not.
    let [whole, part] = [Decode::Whole, Decode::Part].map(|decode| splits(&jpegs, decode, Exif::Apply));
    let ids = (0..whole.train.len() as u32).filter(|id| id % 2 == 0);
    let key = Some(SampleKey { seed: 1, epoch: 0, sample: 0 });
    for id in ids {
        let [whole, part] = [&whole, &part].map(|splits| splits.train.picture(id).shown(key).unwrap());
        assert_eq!(whole, part, "{id}");
    }
}

#[test]
fn a_scaled_part_is_what_pil_makes_of_its_draft() {
    let Some(dir) = pictures() else { return };
    let jpegs = dir.path().join("jpg");
    let splits = splits(&jpegs, Decode::Scaled, Exif::Ignore);
    let random = Framing { middle: 0.875, area: 0.08, ..Framing::WHOLE };
    let (mut requests, mut ours) = (Vec::new(), Vec::new());
    for kind in ["plain", "half-chroma", "whole-chroma", "progressive", "restarts", "coarse", "grey"] {
        for (split, width, height) in [("train", 150, 101), ("train", 47, 300), ("val", 601, 450)] {
            let path = jpegs.join(split).join(format!("it/{kind}-{width}.jpg"));
            let set = if split == "train" { &splits.train } else { &splits.validation };
            let mut files: Vec<PathBuf> =
                fs::read_dir(jpegs.join(split).join("it")).unwrap().map(|file| file.unwrap().path()).collect();
            files.sort_unstable();
            let id = files.iter().position(|file| *file == path).unwrap() as u32;
            let path = path.to_str().unwrap();
            if split == "val" {
                // 0.875 of the shorter side is shown: 40 of 45 pixels.
                requests.push(json!([path, 0, 0, width, height, 60, 45]));
                ours.push(set.picture(id).shown(None).unwrap());
                continue;
            }
            for epoch in 0..30 {
                let key = SampleKey { seed: 1, epoch, sample: id };
                let CropBox { left, top, width, height } = random.part([width, height], key);
                requests.push(json!([path, left, top, width, height, SIDE, SIDE]));
                ours.push(set.picture(id).shown(Some(key)).unwrap());
            }
        }
    }
    let file = dir.path().join("requests.json");
    fs::write(&file, serde_json::to_vec(&requests).unwrap()).unwrap();
    let theirs = ask("PIL, numpy", "images/scaled.py", &[&file, Path::new(&SIDE.to_string())]).unwrap();
    let theirs: Vec<(u32, Vec<u8>)> = serde_json::from_str(&theirs).unwrap();
    for ((ours, (_, theirs)), request) in ours.iter().zip(&theirs).zip(&requests) {
        // PIL rounds to bytes between columns and rows.
        let (largest, _) = difference(std::slice::from_ref(ours), std::slice::from_ref(theirs));
        assert!(largest <= 1, "{request}: {largest}");
    }
    let of = |times| theirs.iter().filter(|it| it.0 == times).count();
    assert!(of(1) > 0 && of(2) > 0 && of(8) > 0 && of(4) == 0, "{} {} {}", of(1), of(2), of(8));
}

#[test]
fn how_images_are_decoded_is_a_part_of_what_a_data_set_is() {
    let Some(dir) = pictures() else { return };
    let dir = dir.path().join("jpg");
    let all = [Decode::Whole, Decode::Part, Decode::Scaled].map(|decode| splits(&dir, decode, Exif::Ignore));
    let [whole, part, scaled] = all.each_ref().map(fingerprint);
    assert!(whole != part && whole != scaled && part != scaled);
}

#[test]
fn other_formats_and_colours_of_print_are_decoded_whole() {
    let dir = tempdir().unwrap();
    if ask("PIL, numpy", "images/modes.py", &[dir.path()]).is_none() {
        return;
    }
    for split in ["train", "val"] {
        let folder = dir.path().join(split).join("it");
        fs::create_dir_all(&folder).unwrap();
        for name in ["cmyk.jpg", "plain.jpg", "alpha.png", "plain.webp"] {
            fs::copy(dir.path().join(name), folder.join(name)).unwrap();
        }
    }
    let [whole, part] = [Decode::Whole, Decode::Part].map(|decode| shown(&splits(dir.path(), decode, Exif::Ignore), 3));
    assert!(whole == part);
    // Damage: the same verdict.
    let path = dir.path().join("train/it/plain.jpg");
    let mut bytes = fs::read(&path).unwrap();
    let tables = bytes.windows(2).position(|pair| pair == [0xff, 0xc4]).unwrap();
    bytes[tables + 4..tables + 24].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let [whole, part] = [Decode::Whole, Decode::Part].map(|decode| {
        let splits = splits(dir.path(), decode, Exif::Ignore);
        splits.train.picture(2).shown(Some(SampleKey { seed: 1, epoch: 0, sample: 2 })).unwrap_err().to_string()
    });
    assert!(whole.contains("plain.jpg") && whole == part, "{whole} {part}");
}
