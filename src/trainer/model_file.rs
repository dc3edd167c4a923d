//! Loads a trained model from a checkpoint, a run, or a file of weights.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::resume::saved;
use super::saved::tensors_and_metadata;
use super::terminal::warn;
use crate::checkpoint::{self, Store, run_dir};
use crate::config::{Config, Saved};
use crate::data::{Exif, Normalization};
use crate::error::{Error, Result};
use crate::model::{ModelConfig, Stem, recognize};
use crate::objects::is_url;
use crate::state::{Metadata, StateDict};
use crate::weights::{self, Description, Stated};

/// Which checkpoint of a run is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// The one with the best validation.
    Best,
    /// The last one that was saved.
    Latest,
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Latest => "latest",
        }
    }

    fn stored(self) -> checkpoint::Which {
        match self {
            Self::Best => checkpoint::Which::Best,
            Self::Latest => checkpoint::Which::Latest,
        }
    }
}

/// Weights, and what is known about them.
pub(super) struct ModelFile {
    pub(super) tensors: StateDict,
    /// The network they belong to.
    pub(super) model: ModelConfig,
    /// The number of outputs.
    pub(super) outputs: usize,
    /// What the file, or the configuration saved with it, says about images and classes.
    pub(super) stated: Stated,
    /// Their file.
    pub(super) origin: String,
    /// Their file and step, for people.
    pub(super) title: String,
    /// The configuration that was saved with them.
    pub(super) config: Option<Saved>,
    /// The run that they are part of.
    pub(super) run: Option<PathBuf>,
}

impl ModelFile {
    /// Reads a checkpoint's directory, a file, or from a run's directory the checkpoint `which`, by default the best
    /// one. With `averaged`, averaged weights are preferred, as in the validation during training.
    pub(super) fn read(path: &Path, which: Option<Which>, averaged: bool) -> Result<Self> {
        if !path.exists() && !checkpoint::is_there(path) && !is_url(path) {
            let remedy = "give a checkpoint's directory, a run's directory or a file of weights with --checkpoint";
            return Err(Error::Checkpoint(format!("'{}' does not exist; {remedy}", path.display())));
        }
        let path = chosen(path, which)?;
        let Weights { tensors, metadata, file, config } = weights(&path, averaged)?;
        let origin = format!("'{}'", file.display());
        let (model, outputs) = recognize(&tensors, &origin)?;
        let stated = Stated::from_metadata(&metadata).or(settings(config.as_ref()));
        let step = metadata.iter().find(|(name, _)| name == "step").map(|(_, step)| format!(", saved at step {step}"));
        let title = format!("{origin}{}", step.unwrap_or_default());
        let run = run_dir::of(&path);
        Ok(Self { tensors, model, outputs, stated, origin, title, config, run })
    }

    /// The whole description: what is `given`, or else stated, or else usual for the stem, which is said.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are more names of classes than outputs.
    pub(super) fn describe(&self, given: Stated) -> Result<Description> {
        let (normalization, size, center_crop) = match self.model.stem {
            Stem::Cifar => (Normalization::CIFAR10, 32, 0.0),
            Stem::Imagenet => (Normalization::IMAGENET, 224, 0.875),
        };
        let usual = Description { classes: Vec::new(), normalization, size, center_crop, exif: Exif::Ignore };
        let (description, assumed) = given.or(self.stated.clone()).complete(usual);
        if description.classes.len() > self.outputs {
            let (names, outputs, origin) = (description.classes.len(), self.outputs, &self.origin);
            return Err(Error::usage(format!(
                "{names} classes are named, but the network in {origin} has {outputs} outputs; name as many with --classes"
            )));
        }
        self.note(&assumed);
        Ok(description)
    }

    /// The error for outputs that are not finite though the weights are.
    pub(super) fn overflow(&self) -> Error {
        let origin = &self.origin;
        Error::Checkpoint(format!("the network in {origin} computes numbers that are not finite; give other weights"))
    }

    /// Says what is `assumed` about the preparation of images, as the arguments that set it.
    pub(super) fn note(&self, assumed: &[String]) {
        if !assumed.is_empty() {
            let (origin, assumed) = (&self.origin, assumed.join(" "));
            warn(&format!(
                "warning: {origin} does not say all about its images, assumed: {assumed}; give what differs"
            ));
        }
    }
}

/// Tensors, their metadata, and their file.
pub(super) struct Weights {
    pub(super) tensors: StateDict,
    metadata: Metadata,
    pub(super) file: PathBuf,
    config: Option<Saved>,
}

/// Reads `path`, a checkpoint's directory or a file; refuses weights that are not finite.
pub(super) fn weights(path: &Path, averaged: bool) -> Result<Weights> {
    let weights = unchecked(path, averaged)?;
    weights::check_finite(&weights.tensors, &format!("'{}'", weights.file.display()))?;
    Ok(weights)
}

fn unchecked(path: &Path, averaged: bool) -> Result<Weights> {
    if !checkpoint::is_there(path) && !is_url(path) {
        let (tensors, metadata) = weights::read(path)?;
        return Ok(Weights { tensors, metadata, file: path.to_path_buf(), config: None });
    }
    let loaded = checkpoint::read(path)?;
    let averaged = averaged && loaded.files.contains_key("average.safetensors");
    let name = if averaged { "average.safetensors" } else { "model.safetensors" };
    let (tensors, metadata) = tensors_and_metadata(&loaded, name)?;
    let config = saved(&loaded).ok();
    Ok(Weights { tensors, metadata, file: loaded.path.join(name), config })
}

/// The checkpoint `which` in a run's directory, by default the best one; any other path is returned as it is.
pub(super) fn chosen(path: &Path, which: Option<Which>) -> Result<PathBuf> {
    let shown = path.display();
    if !path.join("checkpoints").is_dir() {
        let rule = |which: Which| format!("--which {} must go with a run's directory, got '{shown}'", which.name());
        return which.map_or(Ok(path.into()), |which| Err(Error::usage(format!("{}; leave it out", rule(which)))));
    }
    let place = |which: Which| Store::at(path).find(&which.stored());
    // Before the first validation there is no best one.
    let found = which.map_or_else(|| place(Which::Best).or_else(|| place(Which::Latest)), place);
    found.ok_or_else(|| {
        let (which, remedy) = match which {
            Some(Which::Best) => ("best checkpoint", "use --which latest"),
            _ => ("checkpoint", "give another one, or a file of weights, with --checkpoint"),
        };
        Error::Checkpoint(format!("the run '{shown}' has no {which}; {remedy}"))
    })
}

/// What a saved configuration says about images; older files of weights do not say all of it.
fn settings(saved: Option<&Saved>) -> Stated {
    let config = saved.and_then(|saved| toml::from_str::<Config>(&saved.whole()).ok());
    config.map_or_else(Stated::default, |Config { data, .. }| Stated {
        size: Some(data.image_size),
        center_crop: Some(data.center_crop),
        exif: Some(data.exif),
        ..Stated::default()
    })
}
