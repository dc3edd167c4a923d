//! Files for PyTorch: it loads them, and gets what was written.

use std::path::Path;

use kiln::weights::{Description, Stated, Weights, pth, to_pth};
use kiln_data::{Exif, Interpolation, Normalization};
use kiln_engine::state::{HostTensor, StateDict, to_safetensors};
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
        interpolation: Interpolation::Nearest,
    }
}

/// Another one in every part.
fn usual() -> Description {
    let normalization = Normalization { mean: [0.5; 3], std: [0.5; 3] };
    let (exif, interpolation) = (Exif::Ignore, Interpolation::Bilinear);
    Description { classes: vec![], normalization, size: 32, center_crop: 0.0, exif, interpolation }
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
        let Weights { tensors, metadata, .. } = kiln::weights::read(&dir.path().join(name)).unwrap();
        assert_eq!(tensors, example(), "{name}");
        let (read, assumed) = Stated::from_metadata(&metadata).0.complete(usual());
        assert_eq!((read, assumed.len()), (description(), 0), "{name}");
    }
}

#[test]
fn a_description_in_a_pickle_that_cannot_be_is_named_with_its_rule() {
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
    let said = |key: &str, value: &[u8]| {
        let (stated, faults) = described(key, value);
        assert_eq!(stated, Stated::default(), "{key}");
        let [fault] = <[String; 1]>::try_from(faults).unwrap();
        fault
    };
    assert_eq!(described("std", &numbers(&[0.5, 0.25, 1.0])).0.std, Some([0.5, 0.25, 1.0]));
    let rule = "which must be three numbers above 0, separated by commas";
    assert_eq!(said("std", &numbers(&[0.5, 0.0, 1.0])), format!("std '0.5,0.0,1.0', {rule}"));
    for wrong in [numbers(&[0.5, 0.25]), numbers(&[0.5, f64::NAN, 1.0]), b"}".to_vec()] {
        assert!(said("std", &wrong).ends_with(rule));
    }
    assert_eq!(described("exif", &text("apply")).0.exif, Some(Exif::Apply));
    assert_eq!(said("exif", &text("up\n")), r"exif 'up\n', which must be 'ignore' or 'apply'");
    let rule = "which must be 'bilinear', 'bicubic' or 'nearest'";
    assert_eq!(said("interpolation", &text("area")), format!("interpolation 'area', {rule}"));
    assert_eq!(said("center_crop", b"K\x02"), "center_crop '2', which must be 0 or a number from 0.1 to 1");
    assert_eq!(said("image_size", b"K\x00"), "image_size '0', which must be a whole number, 1 to 1024");
    // A long name, many times.
    let long = [b"](".to_vec(), text(&"x".repeat(10_000)), b"q\x07".to_vec(), b"h\x07".repeat(10_000), b"e".to_vec()];
    assert_eq!(said("classes", &long.concat()), "classes 'null', which must be a list of names in JSON");
}
