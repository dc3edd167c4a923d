//! The files of a checkpoint, made from a state: for the disk, and for processes that join.

use std::path::Path;
use std::sync::Arc;

use kiln_engine::checkpoint::{Content, Copies, Snapshot, check_writable, create_atomic, write_atomic};
use kiln_engine::nn::AUXILIARY;
use kiln_engine::parallel::TrainingState;
use kiln_engine::saved::{Identity, snapshot};
use kiln_system::{Error, Result};

use super::clock::Clock;
use super::prepare::Prepared;
use super::terminal::warn;
use crate::config::Config;
use crate::weights::{Description, Format};

#[derive(Debug, Clone)]
pub(super) struct Snapshots {
    pub(super) config: Config,
    pub(super) fingerprint: String,
    /// What is trained, in words.
    pub(super) experiment: Vec<(String, String)>,
    pub(super) clock: Clock,
    /// The metadata of files of weights.
    pub(super) description: Description,
    pub(super) copies: Option<Arc<Copies>>,
}

impl Snapshots {
    pub(super) fn new(config: &Config, prepared: &Prepared, clock: Clock) -> Result<Self> {
        let splits = &prepared.splits;
        let description = Description {
            classes: splits.train.classes().to_vec(),
            normalization: splits.normalization,
            size: splits.validation.size()[0],
            center_crop: config.data.center_crop,
            exif: config.data.exif,
            interpolation: config.data.interpolation,
        };
        let (url, retry_seconds) = (&config.checkpoint.url, config.data.retry_seconds);
        let copies = (!url.as_os_str().is_empty()).then(|| Copies::open(url, retry_seconds, warn)).transpose()?;
        let copies = copies.map(Arc::new);
        let (fingerprint, experiment) = (prepared.fingerprint.clone(), prepared.experiment.clone());
        Ok(Self { config: config.clone(), fingerprint, experiment, clock, description, copies })
    }

    /// What describes a state of this moment.
    pub(super) fn identity(&self) -> Identity {
        Identity {
            seed: self.config.run.seed,
            world_size: self.config.parallel.world_size,
            fingerprint: self.fingerprint.clone(),
            elapsed_seconds: self.clock.seconds(),
        }
    }

    pub(super) fn of(&self, state: TrainingState, identity: Identity) -> Snapshot {
        let mut snapshot = snapshot(state, identity, &self.description.to_metadata());
        snapshot.files.push(("config.toml".to_string(), self.config.to_toml().into_bytes().into()));
        snapshot
    }

    /// Writes the model of `snapshot`, averaged if there is an average, in the format of the file name `to`.
    pub(super) fn copy(&self, snapshot: &Snapshot, to: &Path) -> Result<()> {
        let file = |name: &str| snapshot.files.iter().find(|(file, _)| file == name).map(|(_, content)| content);
        let best = file("average.safetensors").or_else(|| file("model.safetensors"));
        let best = best.expect("every snapshot holds a model");
        let plain = match best {
            Content::Tensors(tensors, metadata) if self.config.model.bn_parts > 1 => {
                let mut tensors = tensors.clone();
                tensors.retain(|name, _| !name.contains(AUXILIARY));
                Some(Content::Tensors(tensors, metadata.clone()))
            }
            _ => None,
        };
        match (Format::of(to), plain.as_ref().unwrap_or(best)) {
            (Some(format), Content::Tensors(tensors, _)) if format != Format::Safetensors => {
                write_atomic(to, &format.encode(tensors, &self.description, "the best checkpoint")?)
            }
            (_, content) => create_atomic(to, |file| content.write(file)),
        }
    }
}

/// Checks before the first epoch that the copy of the best model can be written.
pub(super) fn check_copy(path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    check_writable(path).map_err(|error| Error::usage(format!("{error}; give another --checkpoint")))
}
