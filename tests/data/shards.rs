//! Tar shards: the same data set as the folder of the same images, and everything that can be wrong with a shard.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use image::{Rgb, RgbImage};
use kiln_data::{Corrupt, DataConfig, DataSplits, Source, fingerprint, pack};
use sha2::{Digest, Sha256};
use tar::{Builder, Header};
use tempfile::{TempDir, tempdir};

use super::{assert_names, load};
use crate::files::age;
use crate::python::ask;

mod passed_over;

/// Splits, classes and images: two classes, of which the second has the larger share.
pub const IMAGES: [(&str, usize, &str); 7] = [
    ("train", 0, "a"),
    ("train", 1, "b"),
    ("train", 0, "c"),
    ("train", 1, "d"),
    ("train", 1, "a"),
    ("val", 1, "x"),
    ("val", 0, "y"),
];
const CLASSES: [&str; 2] = ["cat", "dog"];

/// A picture that no other number has, as a JPEG or, if the number is odd, as a PNG.
pub fn picture(number: usize) -> (Vec<u8>, &'static str) {
    let (format, suffix) =
        if number.is_multiple_of(2) { (image::ImageFormat::Jpeg, "jpg") } else { (image::ImageFormat::Png, "png") };
    let pixel = |x: u32, y: u32| Rgb([x * 7 + number as u32 * 31, y * 5, x * y + 9].map(|it| it as u8));
    let mut bytes = std::io::Cursor::new(Vec::new());
    RgbImage::from_fn(20 + number as u32, 17, pixel).write_to(&mut bytes, format).unwrap();
    (bytes.into_inner(), suffix)
}

fn member(tar: &mut Builder<impl Write>, name: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, content).unwrap();
}

/// A shard of members.
pub fn shard(path: &Path, members: &[(&str, &[u8])]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut tar = Builder::new(File::create(path).unwrap());
    members.iter().for_each(|(name, content)| member(&mut tar, name, content));
    tar.into_inner().unwrap();
}

/// The images as a folder, and as two training shards and one of validation, in another order.
pub fn both() -> (TempDir, TempDir) {
    let (folder, shards) = (tempdir().unwrap(), tempdir().unwrap());
    let mut content: [Vec<(String, Vec<u8>)>; 3] = Default::default();
    for (number, (split, class, key)) in IMAGES.into_iter().enumerate() {
        let (bytes, suffix) = picture(number);
        let path = folder.path().join(format!("{split}/{}/{key}.{suffix}", CLASSES[class]));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &bytes).unwrap();
        let shard = if split == "val" { 2 } else { 1 - number % 2 };
        let key = format!("{}/{key}", CLASSES[class]);
        let members = [(format!("{key}.cls"), class.to_string().into_bytes()), (format!("{key}.{suffix}"), bytes)];
        content[shard].extend(members);
        content[shard].push((format!("{key}.json"), b"{}".to_vec()));
    }
    for (name, members) in ["train-000.tar", "train-001.tar", "val-000.tar"].into_iter().zip(&content) {
        let members: Vec<(&str, &[u8])> = members.iter().map(|(name, it)| (name.as_str(), it.as_slice())).collect();
        shard(&shards.path().join(name), &members);
    }
    fs::write(shards.path().join("classes.txt"), "cat\ndog\n").unwrap();
    (folder, shards)
}

pub fn config(source: Source, dir: &Path) -> DataConfig {
    DataConfig { source, dir: dir.to_path_buf(), image_size: 8, cache_mb: 0, ..DataConfig::default() }
}

pub fn shards_of(dir: &Path) -> DataConfig {
    config(Source::Webdataset, dir)
}

/// The one line with which loading fails.
#[track_caller]
pub fn complaint(config: &DataConfig) -> String {
    let message = load(config).expect_err("loading should fail").to_string();
    assert_eq!(message.lines().count(), 1, "more than one line: {message}");
    message
}

/// Classes, labels and pixels.
pub fn content(splits: &DataSplits) -> (Vec<String>, Vec<(u32, Vec<u8>)>) {
    let sets = [&splits.train, &splits.validation];
    let images = |set: &std::sync::Arc<kiln_data::ImageSet>| {
        (0..set.len() as u32).map(|id| (set.label(id), set.image(id).unwrap())).collect::<Vec<_>>()
    };
    (splits.train.classes().to_vec(), sets.into_iter().flat_map(images).collect())
}

#[test]
fn folder_shards_and_pack_of_the_same_images_are_one_data_set() {
    let (folder, shards) = both();
    let expected = load(&config(Source::Folder, folder.path())).unwrap();
    let target = tempdir().unwrap();
    for (at, source) in [folder.path(), shards.path()].into_iter().enumerate() {
        let file = target.path().join(format!("{at}.pack"));
        assert_eq!(pack(&config(Source::Pack, source), None, &file, &|_| {}).unwrap().images, IMAGES.len());
        let splits = load(&config(Source::Pack, &file)).unwrap();
        assert_eq!((fingerprint(&splits), content(&splits)), (fingerprint(&expected), content(&expected)));
    }
    for cache_mb in [0, 100] {
        let splits = load(&DataConfig { cache_mb, ..shards_of(shards.path()) }).unwrap();
        assert_eq!((fingerprint(&splits), content(&splits)), (fingerprint(&expected), content(&expected)));
    }
    // Another class, another name, another length: another data set.
    for (name, class) in [("cat/y.jpg", "1"), ("cat/z.jpg", "0")] {
        let (bytes, _) = picture(6);
        let (other, _) = picture(5);
        let members: [(&str, &[u8]); 4] = [
            ("dog/x.png", &other),
            ("dog/x.cls", b"1"),
            (name, &bytes),
            (&name.replace("jpg", "cls"), class.as_bytes()),
        ];
        shard(&shards.path().join("val-000.tar"), &members);
        assert_ne!(fingerprint(&load(&shards_of(shards.path())).unwrap()), fingerprint(&expected), "{name} {class}");
    }
}

#[test]
fn names_of_shards_and_patterns_say_which_split_they_are_of() {
    let (_, shards) = both();
    let expected = fingerprint(&load(&shards_of(shards.path())).unwrap());
    let dir = shards.path();
    let rename = |from: &str, to: &str| {
        fs::create_dir_all(dir.join(to).parent().unwrap()).unwrap();
        fs::rename(dir.join(from), dir.join(to)).unwrap();
    };
    let pattern = |pattern: &str| shards_of(&dir.join(pattern));
    for fits in ["{train-{000..001},val-000}.tar", "{train-{000,001}.tar,val-{000..000}.tar}"] {
        assert_eq!(fingerprint(&load(&pattern(fits)).unwrap()), expected, "{fits}");
    }
    assert_names(&complaint(&pattern("{train-{000..002},val-000}.tar")), &["train-002.tar'", "cannot read"]);
    assert_names(&complaint(&pattern("train-{000..001}.tar")), &["no shards of val or test", "--data-dir"]);
    assert_names(&complaint(&pattern("train-{000..001.tar")), &["'{' without its '}'"]);
    assert_names(&complaint(&pattern("train-{0..99999999999}.tar")), &["more than 1000000 names"]);
    assert_names(&complaint(&pattern(&"{0..9}".repeat(40))), &["more than 1000000 names"]);
    let side_by_side = format!("{{{}}}", ["{0..999998}"; 40].join(","));
    assert_names(&complaint(&pattern(&side_by_side)), &["more than 1000000 names"]);
    assert_names(&complaint(&pattern(&format!("{{{}1..2}}", "0".repeat(900)))), &["is of no split"]);
    assert_names(&complaint(&pattern(&"{".repeat(100_000))), &["more than 1024 bytes"]);
    rename("train-000.tar", "train/0.tar");
    rename("train-001.tar", "imagenet1k-train-1.tar");
    rename("val-000.tar", "test/part.tar");
    assert_eq!(fingerprint(&load(&shards_of(dir)).unwrap()), expected);
    rename("test/part.tar", "part.tar");
    assert_names(&complaint(&shards_of(dir)), &["part.tar' is of no split", "val*.tar"]);
    assert_names(&complaint(&shards_of(&dir.join("none"))), &["cannot read", "none'"]);
}

#[test]
fn classes_without_names_are_numbers_and_classes_beyond_the_names_are_refused() {
    let (_, shards) = both();
    let names = shards.path().join("classes.txt");
    fs::remove_file(&names).unwrap();
    assert_eq!(load(&shards_of(shards.path())).unwrap().train.classes(), ["0", "1"]);
    fs::write(&names, "cat\n").unwrap();
    assert_names(&complaint(&shards_of(shards.path())), &[".cls' at byte", "holds '1'", "from 0 to 0"]);
    let (bytes, _) = picture(0);
    let expect = |text: &[u8], parts: &[&str]| {
        shard(&shards.path().join("val-000.tar"), &[("k.jpg", &bytes), ("k.cls", text)]);
        assert_names(&complaint(&shards_of(shards.path())), parts);
    };
    fs::write(&names, "cat\ndog").unwrap();
    for text in [b"-1".as_slice(), b"", b"1.5", b"4294967296", b"bird", b"1\n2", &[0xff; 9], &[b'7'; 5000]] {
        expect(text, &["'k.cls' at byte", "val-000.tar' holds", "a class is a number from 0 to 1, or a name"]);
    }
    shard(&shards.path().join("val-000.tar"), &[("k.jpg", &bytes), ("k.cls", b" dog\n")]);
    assert_eq!(load(&shards_of(shards.path())).unwrap().validation.label(0), 1);
}

#[test]
fn a_shard_that_ends_too_early_is_refused_wherever_it_ends() {
    let (_, shards) = both();
    let path = shards.path().join("train-001.tar");
    let whole = fs::read(&path).unwrap();
    // Two blocks of zeros end an archive; the first is enough.
    for length in (0..whole.len() - 1023).step_by(61).chain((0..whole.len() - 1023).step_by(512)) {
        fs::write(&path, &whole[..length]).unwrap();
        assert_names(&complaint(&shards_of(shards.path())), &["train-001.tar' is cut off", "again"]);
    }
    fs::write(&path, &whole[..whole.len() - 512]).unwrap();
    load(&shards_of(shards.path())).unwrap();
}

#[test]
fn headers_that_lie_are_refused_within_a_bound() {
    let (_, shards) = both();
    let path = shards.path().join("val-000.tar");
    let expect = |header: &mut Header, parts: &[&str]| {
        header.set_cksum();
        fs::write(&path, [header.as_bytes().as_slice(), &[0; 4096]].concat()).unwrap();
        assert_names(&complaint(&shards_of(shards.path())), &[&["val-000.tar'"], parts].concat());
    };
    let mut header = Header::new_gnu();
    header.set_path("a.jpg").unwrap();
    for size in [4097, 1 << 40, u64::MAX >> 1, u64::MAX] {
        header.set_size(size);
        expect(&mut header, &["is cut off: 'a.jpg'", &format!("{size} bytes, of which 4096 are there")]);
    }
    for kind in [b'L', b'x'] {
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_size(3 << 40);
        expect(&mut header, &["is cut off"]);
    }
    header.set_size(512);
    for kind in [b'S', b'x'] {
        header.set_entry_type(tar::EntryType::new(kind));
        expect(&mut header, &[if kind == b'S' { "sparse" } else { "invalid header" }]);
    }
    header.as_mut_bytes()[124..136].copy_from_slice(b"not a number");
    expect(&mut header, &["invalid size at byte 0"]);
    fs::write(&path, [7; 4096]).unwrap();
    assert_names(&complaint(&shards_of(shards.path())), &["val-000.tar' has no tar header at byte 0"]);
    // A name of a gigabyte.
    header.set_entry_type(tar::EntryType::new(b'L'));
    header.set_size(1 << 30);
    header.set_cksum();
    fs::write(&path, header.as_bytes()).unwrap();
    File::options().write(true).open(&path).unwrap().set_len((1 << 30) + 4096).unwrap();
    assert_names(&complaint(&shards_of(shards.path())), &["a header of 1073741824 bytes", "at most 65536"]);
}

#[test]
fn every_flipped_byte_of_a_shard_is_the_same_data_or_one_line() {
    let (_, shards) = both();
    let path = shards.path().join("val-000.tar");
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x41;
        fs::write(&path, damaged).unwrap();
        if let Err(error) = load(&shards_of(shards.path())) {
            assert_eq!(error.to_string().lines().count(), 1, "byte {at}: {error}");
            refused += 1;
        }
    }
    assert!(refused > 100, "only {refused} were refused");
}

#[test]
fn damaged_images_are_left_out_on_request_and_nothing_else_changes() {
    let (folder, shards) = both();
    let file = |key: &str| folder.path().join("train/dog").join(key);
    // Whole at both ends, so that only decoding finds it.
    let mut bytes = picture(3).0;
    let middle = bytes.len() / 2;
    bytes[middle..middle + 8].fill(0xaa);
    fs::write(file("d.png"), &bytes).unwrap();
    let dog = |name: &str, bytes: &[u8]| {
        shard(
            &shards.path().join("train-000.tar"),
            &[("dog/b.png", &picture(1).0), ("dog/b.cls", b"1"), (name, bytes), ("dog/d.cls", b"1")],
        );
    };
    dog("dog/d.png", &bytes);
    age(folder.path());
    age(shards.path());
    let configs = [config(Source::Folder, folder.path()), shards_of(shards.path())];
    for config in &configs {
        let splits = load(config).unwrap();
        let at = (0..5).find(|id| splits.train.image(*id).is_err()).unwrap();
        assert_eq!(at, 4);
        let message = splits.train.image(at).unwrap_err().to_string();
        assert_names(&message, &["d.png'", "is not a PNG", "replace or remove it", "data.corrupt=skip"]);
        // Decided when the set is opened, so it is the same for any world, and the other images keep their order.
        let skipping = DataConfig { corrupt: Corrupt::Skip, ..config.clone() };
        for _ in 0..2 {
            let splits = load(&skipping).unwrap();
            assert_eq!(splits.train.len(), 4);
            assert_names(&splits.notes.join("; "), &["1 damaged image left out by data.corrupt=skip", "d.png'"]);
        }
    }
    let skipping = configs.map(|config| DataConfig { corrupt: Corrupt::Skip, ..config });
    let skipped = skipping.each_ref().map(|config| fingerprint(&load(config).unwrap()));
    fs::write(file("d.png"), picture(3).0).unwrap();
    assert_eq!(load(&skipping[0]).unwrap().train.len(), 5, "it was repaired in its place");
    fs::remove_file(file("d.png")).unwrap();
    let removed = load(&config(Source::Folder, folder.path())).unwrap();
    assert_eq!(skipped, [fingerprint(&removed), fingerprint(&removed)]);
    assert_eq!(content(&load(&skipping[1]).unwrap()), content(&removed));
}

/// Runs where the virtual environment of `make setup-tch` has webdataset.
#[test]
fn shards_of_python_are_read_and_ours_by_python() {
    let (folder, shards) = both();
    let target = tempdir().unwrap();
    let arguments = [folder.path(), target.path(), shards.path()];
    let Some(read) = ask("webdataset", "images/webdataset_shards.py", &arguments) else { return };
    let expected = load(&config(Source::Folder, folder.path())).unwrap();
    let theirs = load(&shards_of(target.path())).unwrap();
    assert_eq!((fingerprint(&theirs), content(&theirs).1), (fingerprint(&expected), content(&expected).1));
    let mut ours: Vec<String> = IMAGES
        .into_iter()
        .enumerate()
        .map(|(number, (split, class, key))| {
            format!("{split} {}/{key} {class} {}", CLASSES[class], picture(number).0.len())
        })
        .collect();
    let mut read: Vec<&str> = read.lines().collect();
    ours.sort();
    read.sort_unstable();
    assert_eq!(read, ours);
}
