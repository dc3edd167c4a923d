//! A trained model out of a checkpoint, a run, or a file of weights.

use std::path::{Path, PathBuf};

use super::origin::saved;
use super::resume::tensors_and_metadata;
use crate::checkpoint::{self, run_dir};
use crate::config::Saved;
use crate::data::Normalization;
use crate::error::{Error, Result};
use crate::model::{ModelConfig, Stem, recognize};
use crate::state::{Metadata, StateDict};
use crate::weights::{self, Description};

/// Weights and all that is known about them.
pub(super) struct ModelFile {
    pub(super) tensors: StateDict,
    /// Which network they belong to.
    pub(super) model: ModelConfig,
    /// How many outputs it has.
    pub(super) outputs: usize,
    pub(super) description: Description,
    /// Where they come from.
    pub(super) origin: String,
    /// The configuration that was saved with them.
    pub(super) config: Option<Saved>,
    /// The run that they are part of.
    pub(super) run: Option<PathBuf>,
}

impl ModelFile {
    /// Reads a checkpoint's directory, the latest checkpoint of a run's directory, or a file. Of a checkpoint the
    /// `averaged` weights are preferred, as in the validation during training, unless nobody wants them.
    pub(super) fn read(path: &Path, averaged: bool) -> Result<Self> {
        let path = checkpoint_of(path);
        if !path.exists() {
            let remedy = "give a checkpoint's directory, a run's directory or a file of weights with --checkpoint";
            return Err(Error::Checkpoint(format!("'{}' does not exist; {remedy}", path.display())));
        }
        let Weights { tensors, metadata, file, config } = weights(&path, averaged)?;
        let origin = format!("'{}'", file.display());
        let (model, outputs) = recognize(&tensors, &origin)?;
        let description = describe(&metadata, model.stem);
        let run = run_dir::of(&path);
        Ok(Self { tensors, model, outputs, description, origin, config, run })
    }

    /// The name of an output.
    pub(super) fn class(&self, output: usize) -> String {
        self.description.classes.get(output).cloned().unwrap_or_else(|| format!("class {output}"))
    }
}

/// Tensors, what their header says, and the file they are in.
pub(super) struct Weights {
    pub(super) tensors: StateDict,
    metadata: Metadata,
    pub(super) file: PathBuf,
    config: Option<Saved>,
}

/// Those in `path`, which is as of [`ModelFile::read`].
pub(super) fn weights(path: &Path, averaged: bool) -> Result<Weights> {
    let path = checkpoint_of(path);
    if !path.is_dir() {
        let (tensors, metadata) = weights::read(&path)?;
        return Ok(Weights { tensors, metadata, file: path, config: None });
    }
    let loaded = checkpoint::read(&path)?;
    let averaged = averaged && loaded.files.contains_key("average.safetensors");
    let name = if averaged { "average.safetensors" } else { "model.safetensors" };
    let (tensors, metadata) = tensors_and_metadata(&loaded, name)?;
    let config = saved(&loaded).ok();
    Ok(Weights { tensors, metadata, file: loaded.path.join(name), config })
}

/// Of a run's directory, its latest checkpoint; anything else is meant itself.
fn checkpoint_of(path: &Path) -> PathBuf {
    if path.join("checkpoints").is_dir() { path.join("checkpoints/latest") } else { path.to_path_buf() }
}

/// What the file says; of one that says nothing, what its stem is usually trained with.
fn describe(metadata: &Metadata, stem: Stem) -> Description {
    Description::from_metadata(metadata).unwrap_or_else(|| {
        let (normalization, size, center_crop) = match stem {
            Stem::Cifar => (Normalization::CIFAR10, 32, 0.0),
            Stem::Imagenet => (Normalization::IMAGENET, 224, 0.875),
        };
        Description { classes: Vec::new(), normalization, size, center_crop }
    })
}
