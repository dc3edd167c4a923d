//! Restores the state of a checkpoint, and refuses one of another experiment.

use super::prepare::Prepared;
use super::saved::{self, document, position, run_state_of};
use crate::checkpoint::{Loaded, RunState, differences};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::parallel::TrainingState;

/// The keys that must not change between the sessions of a run: it would be another experiment. Where the images are
/// stored is not among them; the fingerprint says that they are the same.
const BINDING: &[&str] = &[
    "run.seed",
    "run.precision",
    "run.accumulation_steps",
    "run.limit_train_batches",
    "parallel.world_size",
    "parallel.batch_size",
    "parallel.sync_bn",
    "parallel.reduce_precision",
    "data.augment",
    "data.crop_padding",
    "data.crop_fill",
    "data.resized_crop",
    "data.center_crop",
    "data.flip",
    "data.cutout",
    "data.rand_augment_ops",
    "data.rand_augment_magnitude",
    "data.color_jitter",
    "data.hue_jitter",
    "data.random_erasing",
    "data.mixup",
    "data.cutmix",
    "data.mix_prob",
    "data.repeated_augmentation",
    "data.order",
    "data.window",
    "data.drop_last",
    "data.image_size",
    "data.exif",
    "data.decode",
    "data.normalization",
    "model",
    "optim.optimizer",
];

/// The state in a checkpoint of the same experiment, and its `state.json`.
pub(super) fn restore(config: &Config, prepared: &Prepared, checkpoint: &Loaded) -> Result<(TrainingState, RunState)> {
    let state = run_state_of(checkpoint)?;
    same_experiment(config, prepared, checkpoint, &state)?;
    let restored = saved::state(checkpoint, position(&state, &prepared.plan), config.optim.ema_decay > 0.0)?;
    Ok((restored, state))
}

/// The configuration in a checkpoint, with the keys that older versions lack: convolutions by definition, 18 layers, images
/// decoded as a whole, as they are stored and in their own colours, permuted as one.
pub(super) fn settings(checkpoint: &Loaded) -> Result<String> {
    let text = String::from_utf8_lossy(document(checkpoint, "config.toml")?).into_owned();
    let Ok(mut settings) = text.parse::<toml::Table>() else { return Ok(text) };
    let older: [(&str, &str, toml::Value); 8] = [
        ("model", "conv", "direct".into()),
        ("model", "depth", 18.into()),
        ("data", "exif", "ignore".into()),
        ("data", "decode", "whole".into()),
        ("data", "color_jitter", 0.0.into()),
        ("data", "hue_jitter", 0.0.into()),
        ("data", "order", "global".into()),
        ("data", "window", 16.into()),
    ];
    for (section, key, value) in older {
        let Some(toml::Value::Table(section)) = settings.get_mut(section) else { return Ok(text) };
        section.entry(key).or_insert(value);
    }
    Ok(settings.to_string())
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
