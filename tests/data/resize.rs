//! Images of another size: as torchvision resizes them, prepared ahead or when they are needed.

use std::path::Path;

use kiln_data::synthetic::{Split, draw};
use kiln_data::{DataConfig, Framing, ImageSet, Source, fingerprint, load};

use crate::python::ask;

const LIMIT: u64 = 4096;

fn pictures() -> ImageSet {
    draw(Split::Train, 3).unwrap()
}

#[test]
fn images_are_resized_as_by_pillow() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pictures().image(2).unwrap()).unwrap();
    for side in [20, 48, 224] {
        let ours = pictures().framed(side, Framing::WHOLE, LIMIT);
        assert_eq!(ours.size(), [side, side]);
        let wanted = side.to_string();
        let Some(theirs) = ask("numpy, PIL", "resize.py", &[file.path(), Path::new(&wanted)]) else { return };
        let theirs: Vec<u8> = serde_json::from_str(&theirs).unwrap();
        let differences: Vec<u8> = ours.image(2).unwrap().iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b)).collect();
        assert_eq!(differences.len(), 3 * side * side);
        let largest = differences.iter().max().unwrap();
        assert!(*largest <= 1, "side {side}: off by {largest} of 255");
    }
}

#[test]
fn images_are_the_same_whether_there_is_memory_for_them_or_not() {
    let [ready, later] = [LIMIT, 0].map(|limit| pictures().framed(40, Framing::WHOLE, limit));
    assert!(ready.picture(0).is_ready() && !later.picture(0).is_ready());
    for id in 0..3 {
        assert_eq!(ready.image(id).unwrap(), later.image(id).unwrap());
    }
    let config = DataConfig { source: Source::Synthetic, train_size: 8, val_size: 4, ..DataConfig::default() };
    let of = |image_size, cache_mb| {
        fingerprint(&load(&DataConfig { image_size, cache_mb, ..config.clone() }, &|_| {}).unwrap())
    };
    assert_eq!(of(40, LIMIT), of(40, 0), "a run may go on with less memory");
    assert_ne!(of(40, LIMIT), of(32, LIMIT));
}
