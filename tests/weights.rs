//! Weights of others: read as PyTorch reads them, written so that it and ONNX Runtime read them, and no file that
//! harms.

mod craft;
mod crafted;
mod hostile;
mod names;
mod onnx;
mod pth;
mod to_pth;
mod torchvision;
mod transplant;

use std::path::{Path, PathBuf};

use kiln_engine::state::{HostTensor, StateDict};
use kiln_system::Result;

use crate::files::file;

/// The tensors of a file of either kind.
fn read(path: &Path) -> Result<StateDict> {
    Ok(kiln::weights::read(path)?.tensors)
}

/// A file that `tests/fixtures/weights/make.py` made.
fn fixture(name: &str) -> PathBuf {
    file("tests/fixtures/weights").join(name)
}

/// Fails unless `message` is one line that contains every one of `parts`.
#[track_caller]
fn assert_line(message: &str, parts: &[&str]) {
    assert_eq!(message.lines().count(), 1, "more than one line: {message}");
    assert!(!message.contains(char::is_control), "control characters: {message:?}");
    for part in parts {
        assert!(message.contains(part), "'{message}' does not name '{part}'");
    }
}

/// A tensor of this shape whose elements are 0, 1, 2 and so on, plus `first`.
fn tensor(shape: &[usize], first: f32) -> HostTensor {
    let data = (0..shape.iter().product::<usize>()).map(|index| first + index as f32).collect();
    HostTensor::F32 { shape: shape.to_vec(), data }
}

fn count(number: i64) -> HostTensor {
    HostTensor::I64 { shape: vec![], data: vec![number] }
}

fn state(tensors: impl IntoIterator<Item = (&'static str, HostTensor)>) -> StateDict {
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}
