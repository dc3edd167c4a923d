//! Data sets in files: tar shards, Parquet files, packs, kept indexes, CIFAR's pickles, patterns for names.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kiln_data::{Corrupt, DataConfig, ImageSet, Source, load, pack};
use sha2::{Digest, Sha256};
use tar::{Builder, Header};
use tempfile::{TempDir, tempdir};

use super::damage::Random;
use super::images::IMAGE_MIB;
use super::target::{Bound, accepted, fuzz};
use super::{corpus, files};

const BOUND: Bound = Bound { factor: 256, mib: 0, inputs: 2000 };

/// Of sources whose images are decoded, one on each thread, all of which may claim to be as large as an image may be.
fn with_images() -> Bound {
    Bound { mib: IMAGE_MIB * std::thread::available_parallelism().map_or(1, usize::from), ..BOUND }
}

const SHARDS: [&str; 2] = ["train-0.tar", "val-0.tar"];

/// Loads the data set and shows some of it.
fn read(source: Source, dir: &Path, random: &mut Random) -> bool {
    let corrupt = *random.pick(&[Corrupt::Refuse, Corrupt::Skip]);
    let cache_mb = *random.pick(&[0, 1]);
    let config = DataConfig { source, dir: dir.into(), corrupt, cache_mb, image_size: 4, ..DataConfig::default() };
    let splits = load(&config, &|_| ());
    let show = |set: &ImageSet| (0..set.len().min(4) as u32).all(|id| accepted(&set.image(id)));
    accepted(&splits) && splits.is_ok_and(|splits| show(&splits.train) && show(&splits.validation))
}

/// A shard of five tiny images, two of them with long names.
fn shard() -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    let images = corpus(&["bits.png", "deep.png", "bits.bmp", "grey.jpg", "lossy.webp"]);
    for (number, (bytes, suffix)) in images.iter().zip(["bmp", "png", "png", "jpg", "webp"]).enumerate() {
        let name = if number < 4 { format!("a/{number}") } else { "y".repeat(150) };
        for (suffix, content) in [(suffix, &bytes[..]), ("cls", format!("{}", number % 2).as_bytes())] {
            if number == 2 {
                let (long, size) = (format!("a/{}/x.{suffix}", "long".repeat(40)), content.len().to_string());
                tar.append_pax_extensions([("path", long.as_bytes()), ("size", size.as_bytes())]).unwrap();
            }
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, format!("{name}.{suffix}"), content).unwrap();
        }
    }
    tar.into_inner().unwrap()
}

/// Gives the headers of an archive the checksums of what is in them now.
fn sum_headers(bytes: &mut [u8]) {
    for header in bytes.chunks_exact_mut(512) {
        if header[257..262] == *b"ustar" {
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

/// Shards of the same images for training and validation.
fn shards() -> TempDir {
    let dir = tempdir().unwrap();
    SHARDS.iter().for_each(|name| fs::write(dir.path().join(name), shard()).unwrap());
    dir
}

#[test]
fn tar() {
    let (dir, corpus) = (shards(), [shard()]);
    fuzz(with_images(), |random| {
        let mut bytes = random.damaged(&corpus);
        if random.chance(80) {
            sum_headers(&mut bytes);
        }
        fs::write(dir.path().join(SHARDS[0]), &bytes).unwrap();
        (bytes.len(), read(Source::Webdataset, dir.path(), random))
    });
}

/// Gives the index at the end of a file the checksum of what is in it now.
fn sum_index(bytes: &mut Vec<u8>, start: u64) {
    let end = bytes.len().saturating_sub(48);
    let body = Sha256::digest(bytes.get(start as usize..end).unwrap_or_default());
    bytes.truncate(end);
    bytes.extend([&start.to_le_bytes(), &body[..], b"kilnidx2"].concat());
}

/// An index between two runs, which believe that no file has changed.
#[test]
fn kept_index() {
    let dir = shards();
    for name in SHARDS {
        let before = SystemTime::now() - Duration::from_secs(60);
        File::options().write(true).open(dir.path().join(name)).unwrap().set_modified(before).unwrap();
    }
    let index = dir.path().join(".kiln-webdataset.index");
    while !index.exists() {
        assert!(read(Source::Webdataset, dir.path(), &mut Random(1)), "the shards are good");
    }
    let corpus = [fs::read(&index).unwrap()];
    fuzz(with_images(), |random| {
        let mut bytes = random.damaged(&corpus);
        if random.chance(95) {
            sum_index(&mut bytes, 0);
        }
        fs::write(&index, &bytes).unwrap();
        (bytes.len(), read(Source::Webdataset, dir.path(), random))
    });
}

#[test]
fn packed() {
    let dir = shards();
    let path = dir.path().join("pack");
    pack(&DataConfig { dir: dir.path().into(), ..DataConfig::default() }, None, &path, &|_| ()).unwrap();
    let corpus = [fs::read(&path).unwrap()];
    let footer = corpus[0].len() - 48;
    let start = u64::from_le_bytes(corpus[0][footer..footer + 8].try_into().unwrap());
    fuzz(with_images(), |random| {
        let mut bytes = random.damaged(&corpus);
        if random.chance(95) {
            let start = if random.chance(90) { start } else { random.next() };
            sum_index(&mut bytes, start);
        }
        fs::write(&path, &bytes).unwrap();
        (bytes.len(), read(Source::Pack, &path, random))
    });
}

#[cfg(feature = "parquet")]
#[test]
fn parquet() {
    let (dir, corpus) = (tempdir().unwrap(), corpus(&[".parquet"]));
    fs::write(dir.path().join("val-0.parquet"), &corpus[0]).unwrap();
    fuzz(with_images(), |random| {
        let bytes = random.damaged(&corpus);
        fs::write(dir.path().join("train-0.parquet"), &bytes).unwrap();
        (bytes.len(), read(Source::Parquet, dir.path(), random))
    });
}

#[test]
fn cifar() {
    let dir = tempdir().unwrap();
    let corpus = [fs::read(files::file("tests/fixtures/cifar-10-batches-py/data_batch_1")).unwrap()];
    fs::write(dir.path().join("test_batch"), &corpus[0]).unwrap();
    fuzz(BOUND, |random| {
        let bytes = random.damaged(&corpus);
        fs::write(dir.path().join("data_batch_1"), &bytes).unwrap();
        (bytes.len(), read(Source::Cifar10, dir.path(), random))
    });
}

#[test]
fn names() {
    let dir = shards();
    let pattern = |text: &str| dir.path().join(text).into_os_string().into_encoded_bytes();
    let corpus =
        [pattern("{train,val}-{0..0}.tar"), pattern("{{train,val},}-{000..127}.tar"), pattern("{a,{b,{c,d}}}")];
    // A million names, each as long as the pattern.
    fuzz(Bound { mib: 2048, inputs: 300, ..BOUND }, |random| {
        let bytes = random.damaged(&corpus);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        (bytes.len(), read(Source::Webdataset, &PathBuf::from(text), random))
    });
}
