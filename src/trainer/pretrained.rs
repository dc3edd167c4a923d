//! What a training adds to the settings of its user: the configuration of the checkpoint that it continues, or what the
//! pretrained weights that it begins with say about images and network.

use std::path::Path;

use kiln_data::NormalizationKind;
use kiln_system::{Result, shown};
use kiln_training::{ModelConfig, Stem, recognize};

use super::initial::TORCHVISION;
use super::model_file::{chosen, unchecked, usual};
use super::origin::with_saved;
use crate::config::{Request, Saved, sketch};
use crate::weights::Description;

/// Adds to `request` what is known of the run that it continues, or of the weights that it begins with.
///
/// # Errors
/// [`Error::Checkpoint`](kiln_system::Error::Checkpoint) if a named checkpoint is damaged,
/// [`Error::Usage`](kiln_system::Error::Usage) if `--resume auto` has no directory.
pub fn completed(request: Request) -> Result<Request> {
    with_saved(request).map(with_weights)
}

/// Adds what the weights that `request` begins with say, as defaults. A saved configuration says all of it already.
/// Weights that cannot be read are refused when the run begins.
pub(super) fn with_weights(mut request: Request) -> Request {
    let wanted = sketch(&request).map(|config| config.model.pretrained).unwrap_or_default();
    if request.saved.is_none() && !wanted.is_empty() {
        request.weights = described(&wanted).ok();
    }
    request
}

/// The settings that the weights `wanted` were trained with.
fn described(wanted: &str) -> Result<Saved> {
    let saved = |text: String| Saved { path: wanted.into(), text, note: None, without: &[], older: "" };
    if wanted == TORCHVISION {
        // Its architecture is the configured one.
        return Ok(saved(images(&usual(Stem::Imagenet)) + "[model]\nstem = \"imagenet\"\n"));
    }
    let found = unchecked(&chosen(Path::new(wanted), None)?, true)?;
    let (stated, _) = found.stated();
    let (model, _) = recognize(&found.tensors, &format!("'{}'", shown(&found.file)))?;
    let stem = match model.stem {
        Stem::Cifar => "cifar",
        Stem::Imagenet => "imagenet",
    };
    let (description, _) = stated.complete(usual(model.stem));
    let ModelConfig { depth, groups, width_per_group, .. } = model;
    let blocks = match model.architecture() {
        it if it.depth() != depth => String::new(),
        it if it.bottleneck.is_none() => format!("depth = {depth}\n"),
        _ => format!("depth = {depth}\ngroups = {groups}\nwidth_per_group = {width_per_group}\n"),
    };
    Ok(saved(images(&description) + &format!("[model]\nstem = \"{stem}\"\n{blocks}")))
}

fn images(description: &Description) -> String {
    let Description { normalization, size, .. } = description;
    let normalization = NormalizationKind::from(*normalization);
    format!("[data]\nimage_size = {size}\nnormalization = \"{normalization}\"\n")
}
