//! Restores the state of a checkpoint, and refuses one of another experiment.

use std::path::PathBuf;

use kiln_engine::checkpoint::{Loaded, RunState, differences};
use kiln_engine::optim::{OptimizerKind, Schedule, initial_state};
use kiln_engine::parallel::{Plan, Position, TrainingState};
use kiln_engine::saved::{document, position, run_state_of, state as state_in};
use kiln_system::{Error, Result, shown};

use super::prepare::Prepared;
use super::terminal::warn;
use crate::config::{Config, Saved, removed};

/// The keys that must not change between the sessions of a run: it would be another experiment. Where the images are
/// stored is not among them; the fingerprint says that they are the same.
pub(super) const BINDING: &[&str] = &[
    "run.seed",
    "run.precision",
    "run.accumulation_steps",
    "run.limit_train_batches",
    "parallel.world_size",
    "parallel.batch_size",
    "parallel.sync_bn",
    "parallel.bn_statistics",
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
    "data.auto_augment",
    "data.color_jitter",
    "data.hue_jitter",
    "data.random_erasing",
    "data.erasing_fill",
    "data.erasing_count",
    "data.mixup",
    "data.cutmix",
    "data.mix_prob",
    "data.repeated_augmentation",
    "data.views",
    "data.erase_first_view",
    "data.order",
    "data.window",
    "data.drop_last",
    "data.image_size",
    "data.val_image_size",
    "data.interpolation",
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
    let mut restored = state_in(checkpoint, position(&state, &prepared.plan), config.optim.ema_decay > 0.0)?;
    if has_another_optimizer(&saved(checkpoint)?.whole(), config.optim.optimizer) {
        warn("warning: the state of another optimizer is not used; this one begins anew");
        restored.optimizer = initial_state();
    }
    Ok((restored, state))
}

/// Of `saved`, which may no longer be valid where it is forced.
fn has_another_optimizer(saved: &str, optimizer: OptimizerKind) -> bool {
    let saved: Option<toml::Table> = saved.parse().ok();
    let kind = saved.as_ref().and_then(|saved| saved.get("optim")?.get("optimizer").cloned());
    kind.is_some_and(|kind| kind.try_into() != Ok(optimizer))
}

/// The keys that older versions lack: convolutions by definition, 18 layers of one group, none left out, images decoded
/// as a whole, as they are stored and in their own colours, without a policy, in one view of one size, permuted as one.
const OLDER: &str = r#"
[model]
conv = "direct"
depth = 18
groups = 1
width_per_group = 64
drop_path = 0.0
bn_parts = 1
[parallel]
bn_statistics = "first"
[data]
exif = "ignore"
decode = "whole"
color_jitter = 0.0
hue_jitter = 0.0
auto_augment = ""
erasing_fill = "mean"
erasing_count = 1
interpolation = "bilinear"
views = 1
erase_first_view = true
val_image_size = 0
order = "global"
window = 16
"#;

pub(super) fn saved(checkpoint: &Loaded) -> Result<Saved> {
    let text = String::from_utf8_lossy(document(checkpoint, "config.toml")?).into_owned();
    Ok(written(checkpoint.path.join("config.toml"), text))
}

/// The configuration `text` that a run of this version or an older one has written to the file `path`.
pub(super) fn written(path: PathBuf, text: String) -> Saved {
    Saved { path, text: removed::without(&text), older: OLDER, note: None, without: &[] }
}

/// Describes how the learning rate continues at `position`, if the saved schedule would continue differently.
pub(super) fn other_rate(checkpoint: &Loaded, plan: &Plan, position: &Position) -> Result<Option<String>> {
    // A configuration that is no longer valid may be forced.
    let Ok(saved) = toml::from_str::<Config>(&saved(checkpoint)?.whole()) else { return Ok(None) };
    let lengths = [saved.run.epochs, plan.sampler.steps_per_epoch()];
    let (world, accumulated) = (saved.parallel.world_size, saved.run.accumulation_steps);
    let before = Schedule::new(&saved.schedule, saved.optim.learning_rate, world, accumulated, lengths);
    let (step, reductions) = (position.global_step, position.plateau.reductions);
    let [old, new] = [&before, &plan.schedule].map(|schedule| schedule.reduced(step, reductions) as f32);
    let last = before.reduced(step.saturating_sub(1), reductions) as f32;
    let next = step + 1;
    Ok((old != new).then(|| {
        format!(
            "the learning rate changes from {last} in step {step} to {new} in step {next}; the saved schedule had \
             {old} there"
        )
    }))
}

fn same_experiment(config: &Config, prepared: &Prepared, checkpoint: &Loaded, state: &RunState) -> Result<()> {
    if config.checkpoint.force_config {
        return Ok(());
    }
    let saved = saved(checkpoint)?.whole();
    let mut faults = differences(&saved, &config.to_toml(), BINDING);
    if state.data_fingerprint != prepared.fingerprint {
        faults.push(format!("images: saved fingerprint {}, now {}", state.data_fingerprint, prepared.fingerprint));
    }
    if faults.is_empty() {
        return Ok(());
    }
    let remedy = "restore these settings, or resume anyway with --force-config";
    Err(Error::Usage(vec![format!(
        "'{}' belongs to another experiment: {}; {remedy}",
        shown(&checkpoint.path),
        faults.join("; ")
    )]))
}
