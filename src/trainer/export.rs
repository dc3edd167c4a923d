//! Hands the weights of a trained model on, in a format of others.

use std::path::Path;

use super::model_file::{ModelFile, Which};
use super::terminal::say;
use crate::checkpoint::{check_writable, write_atomic};
use crate::error::{Error, Result};
use crate::state::{HostTensor, StateDict, to_safetensors};
use crate::weights::{Description, Format, onnx, to_pth};

/// Writes the model in `path` (of a run, its checkpoint `which`) to the file `output`; `averaged` weights where there are
/// any and they are wanted.
pub fn export(path: &Path, which: Option<Which>, to: Format, output: &Path, averaged: bool) -> Result<()> {
    let file = ModelFile::read(path, which, averaged)?;
    check_writable(output).map_err(|error| Error::usage(format!("{error}; give another --output")))?;
    let description = &file.description;
    let bytes = encode(to, &file.tensors, description, &file.origin)?;
    write_atomic(output, &bytes)?;
    say(&format!("weights     {}", file.title));
    say(&format!("written     {} ({:.1} MB)", output.display(), bytes.len() as f64 / 1e6));
    let [mean, std] = [description.normalization.mean, description.normalization.std];
    let size = description.size;
    let part = match description.center_crop {
        0.0 => String::new(),
        share => format!(", the middle {} % of the shorter side", 100.0 * share),
    };
    say(&format!("images      RGB in 0..1, {size}x{size}{part}, minus {mean:?}, divided by {std:?}"));
    Ok(())
}

/// The bytes of a file with these weights, which are from `origin`.
pub(super) fn encode(to: Format, tensors: &StateDict, description: &Description, origin: &str) -> Result<Vec<u8>> {
    match to {
        Format::Safetensors => Ok(to_safetensors(tensors, &description.to_metadata())),
        Format::Pth => to_pth(tensors),
        Format::Onnx => {
            let Description { classes, normalization, size, .. } = description.clone();
            let outputs = tensors.get("fc.bias").map_or(0, HostTensor::len);
            let options = onnx::Options {
                origin: origin.into(),
                // More outputs than names would leave the last ones without.
                classes: if classes.len() == outputs { classes } else { Vec::new() },
                size: [size; 2],
                normalization: Some((normalization.mean, normalization.std)),
            };
            onnx::to_onnx(tensors, &options)
        }
    }
}
