//! The index of a folder or of shards: used while no file has changed, and never longer.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use kiln_data::{DataConfig, DataSplits, Source, fingerprint};

use super::shards::{both, complaint, config, content, picture, shard, shards_of};
use super::{assert_names, load};
use crate::files::{age, date};

/// What is read within a second of a change of all files: a machine with much else to do may need another try.
fn loaded_at_once(config: &DataConfig, index: &Path) -> DataSplits {
    loop {
        let begin = Instant::now();
        date(&config.dir, SystemTime::now());
        let loaded = load(config).unwrap();
        if begin.elapsed() < Duration::from_secs(1) {
            return loaded;
        }
        drop(fs::remove_file(index));
    }
}

#[test]
fn an_index_is_used_while_no_file_has_changed_and_never_longer() {
    let (folder, shards) = both();
    for (config, index, file) in [
        (shards_of(shards.path()), ".kiln-webdataset.index", "train-000.tar"),
        (config(Source::Folder, folder.path()), ".kiln-folder.index", "train/dog/b.png"),
    ] {
        let (dir, index) = (config.dir.clone(), config.dir.join(index));
        let fresh = loaded_at_once(&config, &index);
        assert!(!index.exists(), "a file that changed just now may change again within the clock's tick");
        age(&dir);
        assert_eq!(content(&load(&config).unwrap()), content(&fresh));
        let kept = fs::read(&index).expect("an index is kept beside the data");
        // Its first byte is read only where there is no index: that of a tar header, or that of a picture.
        let victim = dir.join(file);
        let (whole, time) = (fs::read(&victim).unwrap(), fs::metadata(&victim).unwrap().modified().unwrap());
        let change = |bytes: &[u8], time: SystemTime| {
            fs::write(&victim, bytes).unwrap();
            File::open(&victim).unwrap().set_modified(time).unwrap();
        };
        let damaged = [&[whole[0] ^ 1], &whole[1..]].concat();
        change(&damaged, time);
        load(&config).expect("the index is used");
        change(&damaged, time - Duration::from_secs(1));
        assert_names(&complaint(&config), &[file]);
        change(&[&damaged[..], b"\0"].concat(), time);
        assert_names(&complaint(&config), &[file]);
        change(&whole, time);
        // Of a damaged index, or one of other files, nothing is used.
        for at in (0..kept.len()).step_by(11).chain(kept.len() - 48..kept.len()) {
            let mut bytes = kept.clone();
            bytes[at] ^= 0x10;
            fs::write(&index, bytes).unwrap();
            assert_eq!(fingerprint(&load(&config).unwrap()), fingerprint(&fresh), "byte {at}");
        }
        for length in [0, 1, 47, 48, kept.len() / 2, kept.len() - 1] {
            fs::write(&index, &kept[..length]).unwrap();
            assert_eq!(fingerprint(&load(&config).unwrap()), fingerprint(&fresh), "{length} bytes");
        }
        assert_eq!(fs::read(&index).unwrap(), kept, "it was made again");
    }
}

#[test]
fn an_index_of_another_data_set_is_not_used() {
    let ((folder, one), (_, other)) = (both(), both());
    let (bytes, _) = picture(0);
    shard(&other.path().join("val-000.tar"), &[("k.jpg", &bytes), ("k.cls", b"0")]);
    age(one.path());
    age(other.path());
    load(&shards_of(other.path())).unwrap();
    let index = ".kiln-webdataset.index";
    fs::copy(other.path().join(index), one.path().join(index)).unwrap();
    age(folder.path());
    fs::copy(other.path().join(index), folder.path().join(".kiln-folder.index")).unwrap();
    let expected = load(&config(Source::Folder, folder.path())).unwrap();
    assert_eq!(content(&load(&shards_of(one.path())).unwrap()), content(&expected));
}

#[test]
fn a_new_file_or_class_in_a_folder_is_seen_beside_an_index() {
    let (folder, _) = both();
    age(folder.path());
    let config = config(Source::Folder, folder.path());
    load(&config).unwrap();
    assert!(folder.path().join(".kiln-folder.index").exists());
    fs::write(folder.path().join("train/cat/new.jpg"), picture(8).0).unwrap();
    assert_eq!(load(&config).unwrap().train.len(), 6);
    fs::create_dir(folder.path().join("train/eel")).unwrap();
    fs::write(folder.path().join("train/eel/new.jpg"), picture(8).0).unwrap();
    assert_eq!(load(&config).unwrap().train.classes(), ["cat", "dog", "eel"]);
    fs::remove_file(folder.path().join("train/cat/new.jpg")).unwrap();
    assert_eq!(load(&config).unwrap().train.len(), 6);
}
