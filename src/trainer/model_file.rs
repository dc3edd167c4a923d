//! Loads a trained model from a checkpoint, a run, or a file of weights.

use std::path::{Path, PathBuf};

use kiln_data::{Exif, Interpolation, Normalization};
use kiln_engine::checkpoint::{self, Store, Which, run_dir};
use kiln_engine::nn::AUXILIARY;
use kiln_engine::saved::tensors_and_metadata;
use kiln_engine::state::{Metadata, StateDict};
use kiln_objects::is_url;
use kiln_system::{Error, Result, shown};
use kiln_training::{ModelConfig, Stem, recognize};

use super::resume::saved;
use super::terminal::warn;
use crate::config::{Config, Saved};
use crate::weights::{self, Description, Format, Stated, list};

pub(super) struct ModelFile {
    pub(super) tensors: StateDict,
    pub(super) model: ModelConfig,
    pub(super) outputs: usize,
    /// What the file, or the configuration saved with it, says about images and classes.
    pub(super) stated: Stated,
    pub(super) origin: String,
    pub(super) title: String,
    pub(super) config: Option<Saved>,
    pub(super) run: Option<PathBuf>,
}

impl ModelFile {
    /// Reads a checkpoint's directory, a file, or from a run's directory the checkpoint `which`, by default the best
    /// one. With `averaged`, averaged weights are preferred, as in the validation during training.
    pub(super) fn read(path: &Path, which: Option<Which>, averaged: bool) -> Result<Self> {
        if !path.exists() && !checkpoint::is_there(path) && !is_url(path) {
            let remedy = "give a checkpoint's directory, a run's directory or a file of weights with --checkpoint";
            return Err(Error::Checkpoint(format!("'{}' does not exist; {remedy}", shown(path))));
        }
        let path = chosen(path, which)?;
        let weights = weights(&path, averaged)?;
        let (stated, faults) = weights.stated();
        let Weights { tensors, metadata, file, config, left_out } = weights;
        let origin = format!("'{}'", shown(&file));
        let (model, outputs) = recognize(&tensors, &origin)?;
        check_statistics(&tensors, &origin)?;
        if !left_out.is_empty() {
            warn(&format!(
                "warning: {origin} holds tensors that are not part of the network and are ignored: {}",
                list(&left_out)
            ));
        }
        for fault in faults {
            warn(&format!("warning: {origin} says {fault}; this is ignored"));
        }
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
        let (description, assumed) = given.or(self.stated.clone()).complete(usual(self.model.stem));
        if description.classes.len() > self.outputs {
            let (names, outputs, origin) = (description.classes.len(), self.outputs, &self.origin);
            return Err(Error::usage(format!(
                "{names} classes are named, but the network in {origin} has {outputs} outputs; name one class per \
                 output with --classes"
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

    /// Warns of what is `assumed` about the preparation of images, as the arguments that set it.
    pub(super) fn note(&self, assumed: &[String]) {
        if !assumed.is_empty() {
            let (origin, assumed) = (&self.origin, assumed.join(" "));
            warn(&format!(
                "warning: {origin} does not describe its images completely, assumed: {assumed}; give what differs"
            ));
        }
    }
}

/// Refuses parameters without the running statistics of batch-norm; `origin` names their source.
fn check_statistics(tensors: &StateDict, origin: &str) -> Result<()> {
    if tensors.keys().any(|name| name.ends_with(".running_mean")) {
        return Ok(());
    }
    Err(Error::Checkpoint(format!(
        "{origin} lacks the running statistics of batch-norm ('bn1.running_mean' and others), which predictions need; \
         save model.state_dict(), or continue training with --pretrained"
    )))
}

/// What images of a network with this stem usually are; torchvision's files do not say it.
pub(super) fn usual(stem: Stem) -> Description {
    let (normalization, size, center_crop) = match stem {
        Stem::Cifar => (Normalization::CIFAR10, 32, 0.0),
        Stem::Imagenet => (Normalization::IMAGENET, 224, 0.875),
    };
    Description {
        classes: Vec::new(),
        normalization,
        size,
        center_crop,
        exif: Exif::Ignore,
        interpolation: Interpolation::Bilinear,
    }
}

pub(super) struct Weights {
    pub(super) tensors: StateDict,
    pub(super) metadata: Metadata,
    pub(super) file: PathBuf,
    config: Option<Saved>,
    /// Names of tensors that are not of the network.
    pub(super) left_out: Vec<String>,
}

impl Weights {
    /// The description of images and classes in the file, or in the configuration saved with it; and its invalid
    /// entries.
    pub(super) fn stated(&self) -> (Stated, Vec<String>) {
        let (stated, faults) = Stated::from_metadata(&self.metadata);
        (stated.or(settings(self.config.as_ref())), faults)
    }
}

/// Reads `path`, a checkpoint's directory or a file; refuses weights that are not finite.
pub(super) fn weights(path: &Path, averaged: bool) -> Result<Weights> {
    let weights = unchecked(path, averaged)?;
    let origin = format!("'{}'", shown(&weights.file));
    weights::check_finite(&weights.tensors, &origin)?;
    Ok(weights)
}

/// As [`weights()`], which may hold any numbers.
pub(super) fn unchecked(path: &Path, averaged: bool) -> Result<Weights> {
    if is_url(path) && Format::of(path).is_some() {
        let url = shown(path);
        return Err(Error::usage(format!(
            "weights are not downloaded from '{url}'; download them (curl -LO {url}) and give the file, or use \
             torchvision's weights with --pretrained torchvision"
        )));
    }
    let mut weights = if checkpoint::is_there(path) || is_url(path) {
        let loaded = checkpoint::read(path)?;
        let averaged = averaged && loaded.files.contains_key("average.safetensors");
        let name = if averaged { "average.safetensors" } else { "model.safetensors" };
        let (tensors, metadata) = tensors_and_metadata(&loaded, name)?;
        let config = saved(&loaded).ok();
        Weights { tensors, metadata, file: loaded.path.join(name), config, left_out: Vec::new() }
    } else {
        let weights::Weights { tensors, metadata, left_out } = weights::read(path)?;
        Weights { tensors, metadata, file: path.to_path_buf(), config: None, left_out }
    };
    // Only training needs them.
    weights.tensors.retain(|name, _| !name.contains(AUXILIARY));
    Ok(weights)
}

/// The checkpoint `which` in a run's directory, by default the best one; any other path is returned as it is.
pub(super) fn chosen(path: &Path, which: Option<Which>) -> Result<PathBuf> {
    let shown = shown(path);
    if !path.join("checkpoints").is_dir() {
        let rule = |which: Which| format!("--which {} needs the directory of a run, got '{shown}'", which.name());
        return which.map_or(Ok(path.into()), |which| Err(Error::usage(format!("{}; remove it", rule(which)))));
    }
    let place = |which: Which| Store::at(path).find(which);
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
        size: Some(data.validation_side()),
        center_crop: Some(data.center_crop),
        exif: Some(data.exif),
        interpolation: Some(data.interpolation),
        ..Stated::default()
    })
}
