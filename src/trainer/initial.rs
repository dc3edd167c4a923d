//! The initial weights of a run: drawn, or pretrained.

use std::path::{Path, PathBuf};

use kiln_data::Progress;
use kiln_engine::checkpoint::{self, Resume};
use kiln_engine::nn::AUXILIARY;
use kiln_engine::state::StateDict;
use kiln_objects::is_url;
use kiln_system::{Error, Result, shown};
use kiln_training::{Backend, Network, ParameterCount};

use super::loading::Bars;
use super::model_file::{chosen, weights as weights_in};
use super::prepare::{Prepared, blank_network};
use crate::config::Config;
use crate::weights::{self, Report, Stated, torchvision};

/// The name for torchvision's weights.
pub(super) const TORCHVISION: &str = "torchvision";

#[derive(Debug, Clone)]
pub(super) struct ModelSummary {
    pub(super) parameters: ParameterCount,
    pub(super) notes: Vec<String>,
}

/// The model as it enters the first step.
pub(super) fn initial_model(
    backend: &dyn Backend,
    config: &Config,
    prepared: &Prepared,
) -> Result<(Box<dyn Network>, ModelSummary)> {
    let model = blank_network(backend, config, prepared.classes)?;
    let parameters = model.parameters();
    let wanted = &config.model.pretrained;
    // A resumed run loads others later; an elastic run compares the initial weights of its processes.
    let resumes = !matches!(config.checkpoint.resume, Resume::Off | Resume::Auto) && !config.parallel.elastic.is_on();
    if wanted.is_empty() || resumes {
        return Ok((model, ModelSummary { parameters, notes: Vec::new() }));
    }
    let found = weights_in(&chosen(&place(wanted, config)?, None)?, true)?;
    let mut state = model.state();
    let origin = format!("'{}'", shown(&found.file));
    let mut report = weights::transplant(&mut state, found.tensors, &origin)?;
    with_auxiliary(&mut state, &mut report);
    report.unexpected.extend(found.left_out);
    let named = Stated::from_metadata(&found.metadata).0.classes;
    let renamed = if report.dropped_head.is_none() { renamed(&named, prepared.splits.train.classes()) } else { None };
    let from = format!("from {}", shown(&found.file));
    let notes = std::iter::once(from).chain(report.notes()).chain(renamed).collect();
    Ok((model.load(&state, &origin)?, ModelSummary { parameters, notes }))
}

/// The auxiliary batch-norms begin as those that weights have.
fn with_auxiliary(state: &mut StateDict, report: &mut Report) {
    report.missing.retain(|name| !name.contains(AUXILIARY));
    let names: Vec<_> = state.keys().filter(|name| name.contains(AUXILIARY)).cloned().collect();
    for name in names {
        let main = name.split_once(AUXILIARY).and_then(|(norm, rest)| {
            let (_, kind) = rest.split_once('.')?;
            state.get(&format!("{norm}.{kind}")).cloned()
        });
        state.extend(main.map(|main| (name, main)));
    }
}

/// A note if the head was kept although its class names differ from the images'; empty names are not compared.
fn renamed(theirs: &[String], ours: &[String]) -> Option<String> {
    let (theirs, ours) = theirs.iter().zip(ours).find(|(theirs, ours)| theirs != ours)?;
    Some(format!("head kept although a class is named '{theirs}' in the weights and '{ours}' in the images"))
}

/// The file of the weights `wanted`, downloaded if necessary.
pub(super) fn place(wanted: &str, config: &Config) -> Result<PathBuf> {
    if wanted != TORCHVISION {
        let path = Path::new(wanted);
        return if path.exists() || checkpoint::is_there(path) || is_url(path) {
            Ok(path.into())
        } else {
            Err(no(wanted))
        };
    }
    let architecture = config.model.architecture();
    let name = torchvision::file_of(&architecture.torchvision_name()).ok_or_else(|| {
        Error::usage(format!(
            "torchvision has no weights of a {architecture}; give a file with --pretrained, or other --groups and \
             --width-per-group"
        ))
    })?;
    let bars = Bars::new(config.run.progress);
    let path = torchvision::fetch_from(torchvision::HOME, name, &torchvision::cache_directory(), &|done, total| {
        bars.show(Progress::Bytes { what: name.into(), done, total });
    });
    bars.finish();
    path
}

/// The error for a file that is not there; `wanted` may be the name of a network.
fn no(wanted: &str) -> Error {
    let name = wanted.to_lowercase();
    let depth = ["34", "50", "101", "152"].into_iter().find(|depth| name.contains(depth));
    let flags = match torchvision::file_of(&name) {
        Some(_) if !name.starts_with("resnet") => format!(" --arch {name}"),
        _ => depth.map(|depth| format!(" --depth {depth}")).unwrap_or_default(),
    };
    let is_network = ["resnet", "resnext", "imagenet", "default", "true"].iter().any(|word| name.contains(word));
    let meant = if is_network && Path::new(wanted).extension().is_none() {
        format!("for torchvision's weights use --pretrained {TORCHVISION}{flags}")
    } else {
        format!("give a .pth or .safetensors file, the directory of a run or checkpoint, or '{TORCHVISION}'")
    };
    Error::Checkpoint(format!("--pretrained '{wanted}' does not exist; {meant}"))
}
