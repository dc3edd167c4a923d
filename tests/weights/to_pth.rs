//! Files for PyTorch: it loads them, and gets what was written.

use kiln::state::{HostTensor, StateDict, to_safetensors};
use kiln::weights::to_pth;
use tempfile::tempdir;

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

#[test]
fn what_is_written_is_read_back_bit_for_bit() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("weights.pth");
    for tensors in [example(), StateDict::from([("x".into(), tensor(&[70_000], 0.25))])] {
        std::fs::write(&path, to_pth(&tensors).unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), tensors);
    }
}

#[test]
fn the_same_tensors_give_the_same_bytes_and_data_is_aligned() {
    let bytes = to_pth(&example()).unwrap();
    assert_eq!(bytes, to_pth(&example()).unwrap());
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
    std::fs::write(dir.path().join("weights.pth"), to_pth(&example()).unwrap()).unwrap();
    std::fs::write(dir.path().join("weights.safetensors"), to_safetensors(&example(), &[])).unwrap();
    let Some(found) = ask("torch", "weights/load.py", &[dir.path()]) else { return };
    assert_eq!(found.trim(), "10 tensors");
}
