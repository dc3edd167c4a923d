//! Images in class folders: order, decoding, and everything that can be wrong with a folder.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};
use kiln_data::{Augment, Corrupt, DataConfig, Framing, ImageSet, Normalization, Progress, Source, fingerprint};
use kiln_engine::parallel::Shard;
use sha2::{Digest, Sha256};
use tempfile::{TempDir, tempdir};

use super::{assemble, assert_names, complaint, load};
use crate::python::ask;

fn picture(path: &Path, side: u32, colour: [u8; 3], format: ImageFormat) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(side, side, Rgb(colour)).save_with_format(path, format).unwrap();
}

/// Two classes, three training images, one validation image.
fn pets() -> TempDir {
    let dir = tempdir().unwrap();
    picture(&dir.path().join("train/dog/a.PNG"), 4, [9, 8, 7], ImageFormat::Png);
    picture(&dir.path().join("train/cat/b.png"), 4, [1, 2, 3], ImageFormat::Png);
    picture(&dir.path().join("train/cat/a.jpeg"), 10, [200, 200, 200], ImageFormat::Jpeg);
    picture(&dir.path().join("val/dog/x.jpg"), 4, [0, 0, 0], ImageFormat::Jpeg);
    fs::write(dir.path().join("train/notes.txt"), "not a class").unwrap();
    fs::write(dir.path().join("train/cat/.DS_Store"), "hidden").unwrap();
    dir
}

fn config(dir: &Path) -> DataConfig {
    DataConfig { source: Source::Folder, dir: dir.to_path_buf(), image_size: 4, ..DataConfig::default() }
}

#[test]
fn classes_and_files_are_sorted_and_every_image_has_one_size() {
    let dir = pets();
    let splits = load(&config(dir.path())).unwrap();
    let train = &splits.train;
    assert_eq!((train.classes(), train.size()), (["cat".to_owned(), "dog".to_owned()].as_slice(), [4, 4]));
    assert_eq!((0..3).map(|id| train.label(id)).collect::<Vec<_>>(), [0, 0, 1]);
    assert!(train.image(0).unwrap().iter().all(|byte| (198..=202).contains(byte)), "the JPEG, resized");
    let planes = [[1; 16], [2; 16], [3; 16]].concat();
    assert_eq!(train.image(1).unwrap(), planes, "the PNG, as planes of red, green and blue");
    assert_eq!((splits.validation.len(), splits.validation.label(0)), (1, 1));
}

#[test]
fn images_that_do_not_fit_the_cache_are_the_same_images_decoded_when_needed() {
    let dir = pets();
    let cached = load(&config(dir.path())).unwrap();
    let on_disk = load(&DataConfig { cache_mb: 0, ..config(dir.path()) }).unwrap();
    assert!(!on_disk.train.picture(0).is_ready() && cached.train.picture(0).is_ready());
    assert_eq!(fingerprint(&on_disk), fingerprint(&cached), "a run may resume with another cache");
    let batch = |images: &ImageSet| {
        let augment = Augment::new(&config(dir.path()), Normalization::IMAGENET);
        assemble(images, &augment, 5, &Shard { epoch: 1, ids: vec![2, 0, 1], ..Shard::default() }, None)
    };
    assert_eq!(batch(&on_disk.train).unwrap(), batch(&cached.train).unwrap());
    fs::write(dir.path().join("train/dog/a.PNG"), "no picture").unwrap();
    assert_names(&batch(&on_disk.train).unwrap_err().to_string(), &["a.PNG' is not a PNG", "replace or remove it"]);
    let on_disk = DataConfig { cache_mb: 0, ..config(dir.path()) };
    assert_names(&load(&on_disk).unwrap_err().to_string(), &["a.PNG' is not a PNG", "replace or remove it"]);
    picture(&dir.path().join("train/dog/a.PNG"), 5, [9, 8, 7], ImageFormat::Png);
    assert_ne!(fingerprint(&load(&on_disk).unwrap()), fingerprint(&cached));
}

/// Runs that were begun before there were other sources go on.
#[test]
fn the_fingerprint_is_a_hash_of_sizes_labels_names_and_lengths_as_it_always_was() {
    let dir = pets();
    let mut hash = Sha256::new();
    for (files, labels) in [
        (&["train/cat/a.jpeg", "train/cat/b.png", "train/dog/a.PNG"][..], &[0_u32, 0, 1][..]),
        (&["val/dog/x.jpg"], &[1]),
    ] {
        let mut identity = Sha256::new();
        for file in files {
            let length = fs::metadata(dir.path().join(file)).unwrap().len();
            identity.update(file.rsplit('/').next().unwrap());
            identity.update([&[0][..], &length.to_le_bytes()].concat());
        }
        [files.len(), 2, 4, 4].iter().for_each(|number| hash.update((*number as u64).to_le_bytes()));
        labels.iter().for_each(|label| hash.update(label.to_le_bytes()));
        hash.update(identity.finalize());
    }
    let expected: String = hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    for cache_mb in [4096, 0] {
        assert_eq!(fingerprint(&load(&DataConfig { cache_mb, ..config(dir.path()) }).unwrap()), expected);
    }
}

#[test]
fn validation_images_lie_in_a_folder_of_any_usual_name() {
    let dir = pets();
    let mut last = "val";
    for name in ["valid", "validation", "test"] {
        fs::rename(dir.path().join(last), dir.path().join(name)).unwrap();
        assert_eq!(load(&config(dir.path())).unwrap().validation.len(), 1, "{name}");
        last = name;
    }
}

#[test]
fn names_in_two_forms_of_unicode_are_one_fault() {
    let dir = pets();
    let [one, two] = ["caf\u{e9}", "cafe\u{301}"];
    let class = |path: String| picture(&dir.path().join(path).join("x.png"), 4, [0, 0, 0], ImageFormat::Png);
    class(format!("train/{one}"));
    class(format!("val/{two}"));
    let forms = "in two forms of Unicode (cafe<U+0301> and caf<U+00E9>)";
    assert_names(&complaint(Source::Folder, dir.path()), &["have one name", forms, "rename one of the folders"]);
    fs::rename(dir.path().join(format!("val/{two}")), dir.path().join(format!("val/{one}"))).unwrap();
    load(&config(dir.path())).unwrap();
    class(format!("train/{two}"));
    assert_names(&complaint(Source::Folder, dir.path()), &["train' has two classes that are both read as", forms]);
}

#[test]
fn a_set_of_small_images_that_are_enlarged_is_noticed() {
    let dir = tempdir().unwrap();
    for (path, side) in [("train/cat/a.png", 28), ("train/cat/b.jpg", 20), ("val/cat/c.png", 90)] {
        picture(&dir.path().join(path), side, [1, 2, 3], ImageFormat::from_path(path).unwrap());
    }
    let side = |image_size, cache_mb| {
        let splits = load(&DataConfig { image_size, cache_mb, ..config(dir.path()) }).unwrap();
        splits.small_side
    };
    assert_eq!([side(224, 0), side(224, 4096), side(32, 0), side(64, 0)], [Some(28), Some(28), None, None]);
    picture(&dir.path().join("train/cat/d.png"), 65, [1, 2, 3], ImageFormat::Png);
    assert_eq!(side(224, 0), None);
}

#[test]
fn progress_ends_with_all_files() {
    let dir = pets();
    let seen = RefCell::new(Vec::new());
    kiln_data::load(&config(dir.path()), &|progress| seen.borrow_mut().push(progress)).unwrap();
    let what = dir.path().join("train").display().to_string();
    assert!(seen.borrow().contains(&Progress::Files { what, done: 3, total: 3 }), "{seen:?}");
    let is_listing =
        |progress: &Progress| matches!(progress, Progress::Files { what, .. } if what.starts_with("the folders"));
    assert!(seen.borrow().iter().any(is_listing), "{seen:?}");
}

#[test]
fn folders_that_are_missing_or_empty_are_named() {
    let dir = tempdir().unwrap();
    assert_names(&complaint(Source::Folder, dir.path()), &["train'", "--data-dir", "--data synthetic"]);
    fs::create_dir(dir.path().join("train")).unwrap();
    assert_names(&complaint(Source::Folder, dir.path()), &["'val', 'valid', 'validation' or 'test'"]);
    fs::create_dir(dir.path().join("val")).unwrap();
    assert_names(&complaint(Source::Folder, dir.path()), &["no class in", "train'"]);
    fs::create_dir(dir.path().join("train/cat")).unwrap();
    assert_names(&complaint(Source::Folder, dir.path()), &["train/cat'", ".jpg"]);
}

#[test]
fn a_class_that_only_validation_has_is_named() {
    let dir = pets();
    picture(&dir.path().join("val/bird/x.png"), 4, [0, 0, 0], ImageFormat::Png);
    assert_names(&complaint(Source::Folder, dir.path()), &["val/bird'", "cat, dog", "rename or remove"]);
}

#[test]
fn a_file_that_is_no_image_is_named_with_what_it_should_be() {
    let dir = pets();
    fs::write(dir.path().join("train/cat/a.jpg"), "text").unwrap();
    assert_names(&complaint(Source::Folder, dir.path()), &["train/cat/a.jpg' is not a JPEG", "replace or remove"]);
    let whole = fs::read(dir.path().join("train/cat/b.png")).unwrap();
    fs::remove_file(dir.path().join("train/cat/a.jpg")).unwrap();
    fs::write(dir.path().join("train/cat/b.png"), &whole[..whole.len() / 2]).unwrap();
    assert_names(&complaint(Source::Folder, dir.path()), &["train/cat/b.png' is not a PNG"]);
}

/// What becomes of a file with this content, as a reason if it is refused.
fn verdict(path: &Path, content: &[u8]) -> Result<(), String> {
    fs::write(path, content).unwrap();
    ImageSet::from_files(&[path.to_path_buf()], 4, Framing::WHOLE).map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_jpeg_is_refused_unless_it_goes_on_to_its_end_whatever_follows() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jpg");
    RgbImage::from_fn(40, 24, |x, y| Rgb([x * y, x ^ y, 7 * x].map(|it| it as u8))).save(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    for length in 2..whole.len() {
        let reason = verdict(&path, &whole[..length]).unwrap_err();
        assert_names(
            &reason,
            &["a.jpg' is cut off: the JPEG ends after", &format!("{length} bytes"), "replace or remove"],
        );
        assert_eq!(reason.lines().count(), 1, "{reason}");
    }
    for more in [b"".as_slice(), b"\0", b"and more", &whole[..9]] {
        assert_eq!(verdict(&path, &[&whole, more].concat()), Ok(()));
    }
    // An end-of-image marker within a comment is none.
    let comment = [&whole[..2], b"\xff\xfe\0\x06\xff\xd9\xff\xd9", &whole[2..]].concat();
    assert_eq!(verdict(&path, &comment), Ok(()));
    assert!(verdict(&path, &comment[..comment.len() - 1]).is_err());
}

/// Runs where the virtual environment of `make setup-tch` has Pillow, like other tests that ask Python.
#[test]
fn what_is_cut_off_is_refused_as_by_pil() {
    let dir = tempdir().unwrap();
    let Some(found) = ask("PIL, numpy", "images/cut.py", &[dir.path()]) else { return };
    let mut wrong = Vec::new();
    for (name, expected) in found.lines().map(|line| line.split_once(' ').unwrap()) {
        let path = dir.path().join(name);
        let ours = ImageSet::from_files(&[path], 4, Framing::WHOLE).map_or("cut", |_| "whole");
        // A PNG that lacks no more than its last chunk is whole to PIL.
        if ours != expected && !(name.ends_with(".png") && ours == "cut") {
            wrong.push(format!("{name} is {ours}"));
        }
    }
    assert!(found.lines().count() > 4000 && wrong.is_empty(), "{wrong:?}");
}

#[test]
fn files_are_what_their_content_is_in_every_format_that_is_read() {
    let dir = pets();
    let formats = [("c.bmp", ImageFormat::Bmp), ("d.webp", ImageFormat::WebP), ("e.jpg", ImageFormat::Png)];
    for (name, format) in formats {
        picture(&dir.path().join("train/cat").join(name), 4, [1, 2, 3], format);
    }
    for cache_mb in [4096, 0] {
        let splits = load(&DataConfig { cache_mb, ..config(dir.path()) }).unwrap();
        let planes = [[1; 16], [2; 16], [3; 16]].concat();
        assert!((1..5).all(|id| splits.train.image(id).unwrap() == planes), "all but the JPEG are the same");
        assert_eq!((splits.train.len(), splits.notes.len()), (6, 1));
        assert_names(&splits.notes[0], &["1 entry of '", "train' left out: 'notes.txt'; only .jpg, .jpeg, .png"]);
    }
}

#[test]
fn an_image_size_that_cannot_be_is_refused() {
    let dir = pets();
    for image_size in [0, 1_000_000] {
        let error = load(&DataConfig { image_size, ..config(dir.path()) }).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_names(&error.to_string(), &["data.image_size", &format!("'{image_size}'")]);
    }
}

#[test]
fn a_class_folder_whose_name_is_not_utf_8_is_refused_by_it_and_an_image_is_not() {
    let dir = pets();
    let name = |name: &[u8]| dir.path().join("train/cat").join(OsStr::from_bytes(name));
    fs::copy(dir.path().join("train/cat/b.png"), name(b"\xe9.png")).unwrap();
    fs::write(name(b"\xe8.png"), "text").unwrap();
    assert_names(&complaint(Source::Folder, dir.path()), &[r"train/cat/\xe8.png' is not a PNG"]);
    let skipping = DataConfig { corrupt: Corrupt::Skip, ..config(dir.path()) };
    for _ in 0..2 {
        let splits = load(&skipping).unwrap();
        assert_eq!((splits.train.len(), splits.left_out), (4, 1));
    }
    fs::create_dir(dir.path().join("train").join(OsStr::from_bytes(b"caf\xe9"))).unwrap();
    assert_names(&complaint(Source::Folder, dir.path()), &[r"train/caf\xe9' is not UTF-8", "rename the folder"]);
}
