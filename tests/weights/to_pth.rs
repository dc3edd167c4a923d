//! Files for PyTorch: it loads them, and gets what was written.

use std::path::Path;

use kiln::data::{Exif, Normalization};
use kiln::state::{HostTensor, StateDict, to_safetensors};
use kiln::weights::{Description, Stated, pth, to_pth};
use tempfile::tempdir;

use super::craft::{around, text, view};
use super::{count, read, state, tensor};
use crate::python::ask;

fn example() -> StateDict {
    let mut example = state([
        ("0.weight", tensor(&[2, 3, 1, 1], -0.7)),
        ("0.bias", tensor(&[2], 1e-30)),
        ("1.weight", tensor(&[2], 1.0)),
        ("1.bias", tensor(&[2], 0.0)),
        ("1.running_mean", tensor(&[2], f32::MAX)),
        ("1.running_var", tensor(&[2], -0.0)),
        ("1.num_batches_tracked", count(-12_345_678_901)),
    ]);
    example.insert("2.empty".into(), tensor(&[0, 3], 0.0));
    example.insert("2.scalar".into(), tensor(&[], f32::INFINITY));
    example.insert("2.ünïcode".into(), HostTensor::I64 { shape: vec![3, 1], data: vec![i64::MIN, 0, i64::MAX] });
    example
}

fn description() -> Description {
    Description {
        classes: vec!["cat".into(), "dög \"\u{1b}\"".into()],
        normalization: Normalization { mean: [0.4914, 0.0, 0.4465], std: [0.247, 1.0, 1e-3] },
        size: 224,
        center_crop: 0.875,
        exif: Exif::Apply,
    }
}

/// Another one in every part.
fn usual() -> Description {
    let normalization = Normalization { mean: [0.5; 3], std: [0.5; 3] };
    Description { classes: vec![], normalization, size: 32, center_crop: 0.0, exif: Exif::Ignore }
}

#[test]
fn what_is_written_is_read_back_bit_for_bit() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("weights.pth");
    for tensors in [example(), StateDict::from([("x".into(), tensor(&[70_000], 0.25))])] {
        std::fs::write(&path, to_pth(&tensors, None).unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), tensors);
    }
}

#[test]
fn the_same_tensors_give_the_same_bytes_and_data_is_aligned() {
    let bytes = to_pth(&example(), Some(&description())).unwrap();
    assert_eq!(bytes, to_pth(&example(), Some(&description())).unwrap());
    // Every local header's data starts at a multiple of 64: PyTorch maps files into memory.
    let starts: Vec<usize> = (0..bytes.len() - 30).filter(|at| bytes[*at..].starts_with(b"PK\x03\x04")).collect();
    assert_eq!(starts.len(), 3 + example().len());
    for start in starts {
        let length = |at: usize| usize::from(u16::from_le_bytes([bytes[start + at], bytes[start + at + 1]]));
        assert_eq!((start + 30 + length(26) + length(28)) % 64, 0);
    }
}

/// Runs where the virtual environment of `make setup-tch` has PyTorch, like other tests that ask Python.
#[test]
fn pytorch_itself_loads_what_is_written() {
    let dir = tempdir().unwrap();
    std::fs::write(dir.path().join("weights.pth"), to_pth(&example(), Some(&description())).unwrap()).unwrap();
    std::fs::write(dir.path().join("weights.safetensors"), to_safetensors(&example(), &[])).unwrap();
    let Some(found) = ask("torch", "weights/load.py", &[dir.path()]) else { return };
    assert_eq!(found.trim(), "10 tensors");
    // PyTorch has written it again, in both of its formats, and in a training script's checkpoint.
    for name in ["weights.pth", "again.pth", "legacy.pth", "wrapped.pth"] {
        let (tensors, metadata) = kiln::weights::read(&dir.path().join(name)).unwrap();
        assert_eq!(tensors, example(), "{name}");
        let (read, assumed) = Stated::from_metadata(&metadata).complete(usual());
        assert_eq!((read, assumed.len()), (description(), 0), "{name}");
    }
}

#[test]
fn a_description_in_a_pickle_that_is_none_is_not_stated() {
    // Attributes of the dictionary: pairs of key and value.
    let described = |key: &str, value: &[u8]| {
        let attributes =
            [b"}".to_vec(), text("kiln"), b"}".to_vec(), text(key), value.to_vec(), b"ssb".to_vec()].concat();
        let file = around(&[view(8, 0, &[8], &[1]), attributes].concat());
        Stated::from_metadata(&pth::from_bytes(&file, Path::new("x.pth")).unwrap().1)
    };
    let numbers = |numbers: &[f64]| -> Vec<u8> {
        let numbers = numbers.iter().flat_map(|it| [b"G".as_slice(), &it.to_be_bytes()].concat());
        b"](".iter().copied().chain(numbers).chain(*b"e").collect()
    };
    assert_eq!(described("std", &numbers(&[0.5, 0.25, 1.0])).std, Some([0.5, 0.25, 1.0]));
    for wrong in [numbers(&[0.5, 0.25]), numbers(&[0.5, 0.0, 1.0]), numbers(&[0.5, f64::NAN, 1.0]), b"}".to_vec()] {
        assert_eq!(described("std", &wrong), Stated::default());
    }
    assert_eq!(described("exif", &text("apply")).exif, Some(Exif::Apply));
    assert_eq!(described("exif", &text("up")), Stated::default());
    // A long name, many times.
    let long = [b"](".to_vec(), text(&"x".repeat(10_000)), b"q\x07".to_vec(), b"h\x07".repeat(10_000), b"e".to_vec()];
    assert_eq!(described("classes", &long.concat()), Stated::default());
}
