//! The files of a checkpoint, out of a state: what is saved to disk, and what processes send to one that joins them.

use std::borrow::Cow;
use std::path::Path;

use super::clock::Clock;
use super::export::encode;
use super::prepare::Prepared;
use crate::checkpoint::{Best, Progress, RunState, Snapshot};
use crate::config::Config;
use crate::error::Result;
use crate::parallel::{Position, TrainingState};
use crate::state::{StateDict, from_safetensors, to_safetensors};
use crate::weights::{Description, Format};

/// What all checkpoints of a run have in common.
#[derive(Debug, Clone)]
pub(super) struct Snapshots {
    pub(super) config: Config,
    /// Of the images.
    pub(super) fingerprint: String,
    pub(super) clock: Clock,
    /// What files of weights say about themselves.
    pub(super) description: Description,
}

impl Snapshots {
    /// The checkpoints of the run that is configured so.
    pub(super) fn new(config: &Config, prepared: &Prepared, clock: Clock) -> Self {
        let splits = &prepared.splits;
        let description = Description {
            classes: splits.train.classes().to_vec(),
            normalization: splits.normalization,
            size: splits.train.size()[0],
            center_crop: config.data.center_crop,
        };
        Self { config: config.clone(), fingerprint: prepared.fingerprint.clone(), clock, description }
    }

    /// The files of `state`.
    pub(super) fn of(&self, state: TrainingState) -> Snapshot {
        let TrainingState { position, weights, optimizer, average, accuracy, .. } = state;
        // Each dictionary goes when its file is there: a model is held once, not twice.
        let mut files = vec![("model.safetensors".to_string(), self.model_file(&weights, &position))];
        drop(weights);
        files.push(("optimizer.safetensors".to_string(), to_safetensors(&optimizer, &[])));
        drop(optimizer);
        files.extend(average.map(|weights| ("average.safetensors".to_string(), self.model_file(&weights, &position))));
        files.push(("state.json".to_string(), self.run_state(&position).to_json()));
        files.push(("config.toml".to_string(), self.config.to_toml().into_bytes()));
        Snapshot { step: position.global_step, epoch: position.epoch, accuracy, files }
    }

    /// The model of `snapshot`, averaged where there is an average, as the name of the file `to` asks for it.
    pub(super) fn copy<'a>(&self, snapshot: &'a Snapshot, to: &Path) -> Result<Cow<'a, [u8]>> {
        let file = |name: &str| snapshot.files.iter().find(|(file, _)| file == name);
        let best = file("average.safetensors").or_else(|| file("model.safetensors"));
        let (name, bytes) = best.expect("every snapshot holds a model");
        match Format::of(to) {
            Some(format) if format != Format::Safetensors => {
                let (tensors, _) = from_safetensors(bytes, Path::new(name))?;
                encode(format, &tensors, &self.description, "the best checkpoint").map(Cow::Owned)
            }
            _ => Ok(Cow::Borrowed(bytes)),
        }
    }

    fn run_state(&self, position: &Position) -> RunState {
        RunState {
            global_step: position.global_step,
            epoch: position.epoch,
            step_in_epoch: position.step_in_epoch,
            samples_seen: position.samples_seen,
            best: position.best.map(|(metric, step)| Best { metric, step }),
            elapsed_seconds: self.clock.seconds(),
            seed: self.config.run.seed,
            world_size: self.config.parallel.world_size,
            data_fingerprint: self.fingerprint.clone(),
            loss_scale: position.loss_scale,
            progress: Progress {
                loss_sum: position.running.loss,
                correct: position.running.top1 as u64,
                samples: position.running.samples as u64,
            },
        }
    }

    fn model_file(&self, weights: &StateDict, position: &Position) -> Vec<u8> {
        let place = [("step", position.global_step), ("epoch", position.epoch)];
        let mut metadata = self.description.to_metadata();
        metadata.extend(place.map(|(key, value)| (key.to_string(), value.to_string())));
        to_safetensors(weights, &metadata)
    }
}
