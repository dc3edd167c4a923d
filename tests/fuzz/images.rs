//! Images, JPEGs whole and in parts.

use std::fs;

use kiln_data::{Decode, Exif, Framing, ImageSet, Interpolation};
use tempfile::tempdir;

use super::corpus;
use super::damage::Random;
use super::target::{Bound, accepted, fuzz};

/// An image in memory has at most 512 MiB. The decoder of WebP has up to three more in its own planes.
pub const IMAGE_MIB: usize = 2048;
const BOUND: Bound = Bound { factor: 64, mib: IMAGE_MIB, inputs: 2000 };

fn images(suffix: &str, mend: impl Fn(&mut Vec<u8>, &mut Random)) {
    let (dir, corpus) = (tempdir().unwrap(), corpus(&[suffix]));
    let path = dir.path().join(format!("it.{suffix}"));
    fuzz(BOUND, |random| {
        let mut bytes = random.damaged(&corpus);
        mend(&mut bytes, random);
        fs::write(&path, &bytes).unwrap();
        let decode = *random.pick(&[Decode::Whole, Decode::Part, Decode::Scaled]);
        let exif = *random.pick(&[Exif::Ignore, Exif::Apply]);
        let interpolation = *random.pick(&[Interpolation::Bilinear, Interpolation::Bicubic, Interpolation::Nearest]);
        let framing = Framing {
            middle: *random.pick(&[0.0, 0.875]),
            area: 0.0,
            exif,
            decode,
            interpolation: Some(interpolation),
        };
        let side = *random.pick(&[1, 8, 40]);
        (bytes.len(), accepted(&ImageSet::from_files(std::slice::from_ref(&path), side, framing)))
    });
}

#[test]
fn jpeg() {
    images("jpg", |bytes, random| {
        // Start of frame, baseline or progressive; then a length, a depth, height and width.
        let frame = bytes.windows(2).position(|it| matches!(it, [0xff, 0xc0 | 0xc2]));
        if let Some(sides) = frame.and_then(|at| bytes.get_mut(at + 5..at + 9)).filter(|_| random.chance(5)) {
            sides.copy_from_slice(&[0xff, 0xd0, 0xff, 0xd0]);
        }
        if random.chance(80) {
            bytes.extend(b"\xff\xd9");
        }
    });
}

#[test]
fn png() {
    images("png", |bytes, random| {
        if random.chance(80) {
            sum_chunks(bytes);
        }
    });
}

/// Gives the chunks of a PNG the checksums of what is in them now.
fn sum_chunks(bytes: &mut [u8]) {
    let mut at = 8;
    while let Some(length) = bytes.get(at..at + 4).map(|it| u32::from_be_bytes(it.try_into().unwrap()) as usize) {
        let Some(sum) = bytes.get(at + 4..at + 8 + length).map(crc32fast::hash) else { return };
        let Some(place) = bytes.get_mut(at + 8 + length..at + 12 + length) else { return };
        place.copy_from_slice(&sum.to_be_bytes());
        at += 12 + length;
    }
}

#[test]
fn webp() {
    images("webp", |bytes, random| {
        if random.chance(80) && bytes.len() > 12 {
            let length = bytes.len() as u32 - 8;
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
        }
    });
}

#[test]
fn bmp() {
    images("bmp", |_, _| ());
}
