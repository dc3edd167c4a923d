//! Packs: whole or not there, and every damage is found.

use std::fs;
use std::path::{Path, PathBuf};

use kiln_data::{Corrupt, DataConfig, Exif, Recipe, Source, fingerprint, pack};
use tempfile::{TempDir, tempdir};

use super::shards::{IMAGES, both, complaint, config, content, picture};
use super::{assert_names, load};

/// A pack of the folder, and its bytes.
fn packed(dir: &TempDir, source: &Path, recipe: Option<Recipe>) -> (PathBuf, Vec<u8>) {
    let file = dir.path().join("images.pack");
    pack(&config(Source::Pack, source), recipe, &file, &|_| {}).unwrap();
    let bytes = fs::read(&file).unwrap();
    (file, bytes)
}

#[test]
fn a_damaged_pack_is_refused_or_its_sample_is_named() {
    let (folder, _) = both();
    let dir = tempdir().unwrap();
    let (file, whole) = packed(&dir, folder.path(), None);
    let config = config(Source::Pack, &file);
    let expected = fingerprint(&load(&config).unwrap());
    let data: usize = (0..IMAGES.len()).map(|number| picture(number).0.len() + 4).sum();
    for at in (0..whole.len()).step_by(29).chain(data - 4..data + 4).chain(whole.len() - 48..whole.len()) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        fs::write(&file, bytes).unwrap();
        if at >= data {
            assert_names(&complaint(&config), &["images.pack' is not a whole pack", "train pack"]);
            continue;
        }
        let splits = load(&config).unwrap();
        let outcomes = [&splits.train, &splits.validation]
            .map(|set| (0..set.len() as u32).map(|id| set.image(id)).collect::<Vec<_>>());
        let faults: Vec<String> = outcomes.into_iter().flatten().filter_map(|it| Some(it.err()?.to_string())).collect();
        assert!(faults.len() == 1 && fingerprint(&splits) == expected, "byte {at}: {faults:?}");
        assert_names(&faults[0], &["at byte", "images.pack'", "does not have its checksum"]);
    }
    for length in [0, 8, 48, data, whole.len() - 1] {
        fs::write(&file, &whole[..length]).unwrap();
        assert_names(&complaint(&config), &["images.pack' is not a whole pack"]);
    }
    fs::remove_file(&file).unwrap();
    assert_names(&complaint(&config), &["cannot read", "images.pack'"]);
}

#[test]
fn a_pack_appears_whole_or_not_at_all() {
    let (folder, _) = both();
    let dir = tempdir().unwrap();
    fs::write(folder.path().join("val/dog/x.png"), &picture(5).0[..100]).unwrap();
    let file = dir.path().join("images.pack");
    let recipe = Some(Recipe { side: Some(4), exif: Exif::Ignore, jpeg: 0.5 });
    assert_names(
        &pack(&config(Source::Pack, folder.path()), recipe, &file, &|_| {}).unwrap_err().to_string(),
        &["x.png'"],
    );
    let nowhere = dir.path().join("none/images.pack");
    let skipping = DataConfig { corrupt: Corrupt::Skip, ..config(Source::Pack, folder.path()) };
    let error = pack(&skipping, None, &nowhere, &|_| {}).unwrap_err();
    assert_names(&error.to_string(), &["cannot write", "none/images.pack'"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_pack_of_smaller_images_holds_jpegs_and_plain_pixels_in_the_given_share() {
    let (folder, _) = both();
    let dir = tempdir().unwrap();
    let plain = content(&load(&config(Source::Folder, folder.path())).unwrap());
    let (file, bytes) = packed(&dir, folder.path(), Some(Recipe { side: None, exif: Exif::Ignore, jpeg: 0.0 }));
    assert_eq!(content(&load(&config(Source::Pack, &file)).unwrap()), plain, "plain pixels are the decoded images");
    let count = |bytes: &[u8], magic: &[u8]| bytes.windows(magic.len()).filter(|window| *window == magic).count();
    assert_eq!(count(&bytes, b"kilnraw1"), IMAGES.len());
    let (_, bytes) = packed(&dir, folder.path(), Some(Recipe { side: Some(10), exif: Exif::Ignore, jpeg: 0.5 }));
    let (raw, jpeg) = (count(&bytes, b"kilnraw1"), count(&bytes, b"\xff\xd8\xff\xe0"));
    assert!(raw + jpeg == IMAGES.len() && raw > 0 && jpeg > 0, "{raw} plain, {jpeg} JPEGs");
    assert_eq!(
        bytes,
        packed(&dir, folder.path(), Some(Recipe { side: Some(10), exif: Exif::Ignore, jpeg: 0.5 })).1,
        "the same each time"
    );
    let sides = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let first = bytes.windows(8).position(|window| window == b"kilnraw1").unwrap();
    assert_eq!(sides(first + 8), 10, "the longer side");
    assert!(sides(first + 12) < 10, "the other side");
}
