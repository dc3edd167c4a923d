//! Pictures in every mode, against torchvision's loader: `PIL.Image.open(file).convert("RGB")`.

use std::collections::BTreeMap;

use kiln_data::{Exif, Framing, ImageSet};
use tempfile::tempdir;

use crate::python::ask;

/// Width and height of the pictures.
const SIDE: usize = 24;

/// Runs where the virtual environment of `make setup-tch` has Pillow.
#[test]
fn pictures_of_every_mode_are_what_pil_makes_of_them() {
    let dir = tempdir().unwrap();
    let Some(theirs) = ask("PIL, numpy", "images/modes.py", &[dir.path()]) else { return };
    let theirs: BTreeMap<String, Vec<u8>> = serde_json::from_str(&theirs).unwrap();
    assert!(theirs.len() > 30);
    for (name, theirs) in &theirs {
        let (file, exif) = match name.split_once(' ') {
            Some((file, _)) => (file, Exif::Apply),
            None => (name.as_str(), Exif::Ignore),
        };
        let set = ImageSet::from_files(&[dir.path().join(file)], SIDE, Framing { exif, ..Framing::WHOLE }).unwrap();
        let planes = set.image(0).unwrap();
        let ours: Vec<u8> =
            (0..SIDE * SIDE).flat_map(|pixel| [0, 1, 2].map(|channel| planes[channel * SIDE * SIDE + pixel])).collect();
        if name == "deep.png" {
            // PIL cuts 16-bit grey off at 255; here 16 bits become 8, as for every other picture.
            let expected = |at: usize| ((at / SIDE * 2000 + at % SIDE * 17) as f64 / 257.0).round() as u8;
            assert!((0..SIDE * SIDE).all(|at| ours[3 * at] == expected(at)), "{name}");
            continue;
        }
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let largest = ours.iter().zip(theirs).map(|(ours, theirs)| ours.abs_diff(*theirs)).max().unwrap();
        assert_eq!(largest, 0, "{name}");
    }
}
