//! The initial weights of a run: drawn, or pretrained.

use std::path::{Path, PathBuf};

use burn::backend::Autodiff;

use super::loading::Bars;
use super::model_file::{chosen, weights as weights_in};
use super::prepare::blank_model;
use crate::checkpoint::Resume;
use crate::config::Config;
use crate::data::Progress;
use crate::error::Result;
use crate::model::{Architecture, ParameterCount, ResNet, count_parameters};
use crate::nn::{load_state, state_dict};
use crate::parallel::HostBackend;
use crate::weights::{self, torchvision};

/// The name for torchvision's weights.
const TORCHVISION: &str = "torchvision";

/// The description of a model in the overview.
#[derive(Debug, Clone)]
pub(super) struct Start {
    pub(super) parameters: ParameterCount,
    /// The source of pretrained weights.
    pub(super) notes: Vec<String>,
}

/// The model as it enters the first step.
pub(super) fn initial_model<B: HostBackend>(config: &Config, classes: usize) -> Result<(ResNet<Autodiff<B>>, Start)> {
    let model = blank_model::<B>(config, classes)?;
    let parameters = count_parameters(&model);
    let wanted = &config.model.pretrained;
    // A resumed run loads others later; an elastic run compares the initial weights of its processes.
    let resumes = !matches!(config.checkpoint.resume, Resume::Off | Resume::Auto) && !config.parallel.elastic.is_on();
    if wanted.is_empty() || resumes {
        return Ok((model, Start { parameters, notes: Vec::new() }));
    }
    let found = weights_in(&chosen(&place(wanted, config)?, None)?, true)?;
    let mut state = state_dict(&model);
    let origin = format!("'{}'", found.file.display());
    let report = weights::transplant(&mut state, found.tensors, &origin)?;
    let notes = std::iter::once(format!("from {}", found.file.display())).chain(report.notes()).collect();
    Ok((load_state(model, &state, &origin)?, Start { parameters, notes }))
}

/// The file of the weights `wanted`, downloaded if necessary.
fn place(wanted: &str, config: &Config) -> Result<PathBuf> {
    if wanted != TORCHVISION {
        return Ok(Path::new(wanted).to_path_buf());
    }
    let bars = Bars::new(config.run.progress);
    let is_18 = config.model.architecture() == Architecture::RESNET18;
    let name = if is_18 { torchvision::RESNET18 } else { torchvision::RESNET34 };
    let path = torchvision::fetch(name, &torchvision::cache_directory(), &|done, total| {
        bars.show(Progress::Bytes { what: name.into(), done, total });
    });
    bars.finish();
    path
}
