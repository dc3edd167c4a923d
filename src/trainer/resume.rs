//! Taking up what a checkpoint says: refuses one of another experiment, and restores the state.

use super::prepare::Prepared;
use crate::checkpoint::{Loaded, RunState, differences};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::file::TEXT;
use crate::model::Tally;
use crate::parallel::{Position, TrainingState};
use crate::state::{Metadata, StateDict, from_safetensors};

/// What must not change between the sessions of one run: it would be another experiment.
const BINDING: &[&str] = &[
    "run.seed",
    "run.precision",
    "run.accumulation_steps",
    "run.limit_train_batches",
    "parallel.world_size",
    "parallel.batch_size",
    "parallel.sync_bn",
    "parallel.reduce_precision",
    "data.source",
    "data.augment",
    "data.crop_padding",
    "data.crop_fill",
    "data.resized_crop",
    "data.center_crop",
    "data.flip",
    "data.cutout",
    "data.rand_augment_ops",
    "data.rand_augment_magnitude",
    "data.random_erasing",
    "data.mixup",
    "data.cutmix",
    "data.mix_prob",
    "data.repeated_augmentation",
    "data.drop_last",
    "data.image_size",
    "data.normalization",
    "model",
    "optim.optimizer",
];

/// The state in a checkpoint, after making sure that it belongs to the same experiment; and what is written beside it.
pub(super) fn restore(config: &Config, prepared: &Prepared, checkpoint: &Loaded) -> Result<(TrainingState, RunState)> {
    let state = RunState::from_json(document(checkpoint, "state.json")?, &checkpoint.path.join("state.json"))?;
    same_experiment(config, prepared, checkpoint, &state)?;
    let averaging = config.optim.ema_decay > 0.0 && checkpoint.files.contains_key("average.safetensors");
    let restored = TrainingState {
        position: position(&state, prepared),
        weights: tensors(checkpoint, "model.safetensors")?,
        optimizer: tensors(checkpoint, "optimizer.safetensors")?,
        average: averaging.then(|| tensors(checkpoint, "average.safetensors")).transpose()?,
        is_best: false,
        accuracy: None,
    };
    Ok((restored, state))
}

/// The configuration that a checkpoint was trained with. One from before `model.conv` computed its convolutions directly.
pub(super) fn settings(checkpoint: &Loaded) -> Result<String> {
    let text = String::from_utf8_lossy(document(checkpoint, "config.toml")?).into_owned();
    let Ok(mut settings) = text.parse::<toml::Table>() else { return Ok(text) };
    match settings.get_mut("model") {
        Some(toml::Value::Table(model)) if !model.contains_key("conv") => model.insert("conv".into(), "direct".into()),
        _ => return Ok(text),
    };
    Ok(settings.to_string())
}

/// The bytes of a document of a checkpoint, which takes a multiple of them in memory.
pub(super) fn document<'a>(checkpoint: &'a Loaded, name: &str) -> Result<&'a [u8]> {
    let bytes = file(checkpoint, name)?;
    if bytes.len() as u64 > TEXT {
        let path = checkpoint.path.join(name);
        let rule = "which Kiln never writes; resume from another checkpoint";
        return Err(Error::Checkpoint(format!("'{}' has {} bytes, {rule}", path.display(), bytes.len())));
    }
    Ok(bytes)
}

/// The bytes of one file of a checkpoint.
pub(super) fn file<'a>(checkpoint: &'a Loaded, name: &str) -> Result<&'a [u8]> {
    checkpoint.files.get(name).map(Vec::as_slice).ok_or_else(|| {
        Error::Checkpoint(format!(
            "the checkpoint '{}' has no '{name}'; resume from another",
            checkpoint.path.display()
        ))
    })
}

/// The tensors in one file of a checkpoint.
pub(super) fn tensors(checkpoint: &Loaded, name: &str) -> Result<StateDict> {
    Ok(tensors_and_metadata(checkpoint, name)?.0)
}

/// The same with what the file's header says.
pub(super) fn tensors_and_metadata(checkpoint: &Loaded, name: &str) -> Result<(StateDict, Metadata)> {
    from_safetensors(file(checkpoint, name)?, &checkpoint.path.join(name))
}

fn same_experiment(config: &Config, prepared: &Prepared, checkpoint: &Loaded, state: &RunState) -> Result<()> {
    if config.checkpoint.force_config {
        return Ok(());
    }
    let saved = settings(checkpoint)?;
    let mut faults = differences(&saved, &config.to_toml(), BINDING);
    if state.data_fingerprint != prepared.fingerprint {
        faults.push(format!("images: saved fingerprint {}, now {}", state.data_fingerprint, prepared.fingerprint));
    }
    if faults.is_empty() {
        return Ok(());
    }
    let remedy = "restore these settings, or go on regardless with --force-config";
    Err(Error::Usage(vec![format!(
        "'{}' belongs to another experiment: {}; {remedy}",
        checkpoint.path.display(),
        faults.join("; ")
    )]))
}

/// With `--force-config` a step may hold other samples than before. The permutation of an epoch does not depend on that,
/// so the run goes on at the last step boundary up to which all samples were seen, and counts steps in the new measure.
fn position(state: &RunState, prepared: &Prepared) -> Position {
    let sampler = &prepared.plan.sampler;
    let step_in_epoch = sampler.steps_within(state.progress.samples as usize);
    Position {
        global_step: state.epoch * sampler.steps_per_epoch() + step_in_epoch,
        epoch: state.epoch,
        step_in_epoch,
        samples_seen: state.samples_seen,
        running: Tally {
            loss: state.progress.loss_sum,
            top1: state.progress.correct as usize,
            top5: 0,
            samples: state.progress.samples as usize,
        },
        best: state.best.map(|best| (best.metric, best.step)),
        loss_scale: state.loss_scale,
    }
}
