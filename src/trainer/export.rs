//! Hands the weights of a trained model on, in a format of others.

use std::path::Path;

use super::model_file::{ModelFile, Which};
use super::terminal::say;
use crate::checkpoint::{check_writable, write_atomic};
use crate::error::Result;
use crate::state::to_safetensors;
use crate::weights::{Description, Format, onnx, to_pth};

/// Writes the model in `path` (of a run, its checkpoint `which`) to the file `output`; `averaged` weights where there are
/// any and they are wanted.
pub fn export(path: &Path, which: Option<Which>, to: Format, output: &Path, averaged: bool) -> Result<()> {
    let file = ModelFile::read(path, which, averaged)?;
    check_writable(output)?;
    let description = &file.description;
    let bytes = match to {
        Format::Safetensors => to_safetensors(&file.tensors, &description.to_metadata()),
        Format::Pth => to_pth(&file.tensors)?,
        Format::Onnx => onnx::to_onnx(&file.tensors, &onnx_options(&file))?,
    };
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

fn onnx_options(file: &ModelFile) -> onnx::Options {
    let Description { classes, normalization, size, .. } = file.description.clone();
    onnx::Options {
        origin: file.origin.clone(),
        // More outputs than names would leave the last ones without.
        classes: if classes.len() == file.outputs { classes } else { Vec::new() },
        size: [size; 2],
        normalization: Some((normalization.mean, normalization.std)),
    }
}
