//! Restores the state of a checkpoint, and refuses one of another experiment.

use std::path::PathBuf;

use kiln_engine::checkpoint::{Loaded, RunState, differences};
use kiln_engine::optim::{OptimizerKind, Schedule, initial_state};
use kiln_engine::parallel::{Plan, Position, TrainingState};
use kiln_engine::saved::{document, position, run_state_of, state as state_in};
use kiln_system::{Error, Result, shown};

use super::prepare::Prepared;
use super::terminal::warn;
use crate::config::{Config, PER_PROCESS_KEYS, Saved, removed};

/// The keys that must not change between the sessions of a run: it would be another experiment.
const BINDING: &[&str] = &[
    "run.seed",
    "run.precision",
    "run.accumulation_steps",
    "run.limit_train_batches",
    "parallel.world_size",
    "parallel.batch_size",
    "parallel.sync_bn",
    "parallel.bn_statistics",
    "parallel.reduce_precision",
    "data",
    "model",
    "optim.optimizer",
];

/// Keys of `data` that may change, beside those that may differ between processes: where the images are stored. The
/// fingerprint says that they are the same.
const STORAGE: [&str; 6] =
    ["data.source", "data.corrupt", "data.image_column", "data.label_column", "data.train_size", "data.val_size"];

/// The settings that make `current` another experiment than `saved`, a line each; those of `more` keys too.
pub(super) fn changes(saved: &Saved, current: &Config, more: &[&str]) -> Vec<String> {
    let mut changes = differences(&saved.whole(), &current.to_toml(), &[BINDING, more].concat());
    changes.retain(|line| {
        let key = line.split(':').next().unwrap_or_default();
        !STORAGE.contains(&key) && !PER_PROCESS_KEYS.contains(&key)
    });
    changes
}

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

/// What older versions did that lack the key, where it is not the default: convolutions by definition.
const OLDER: &str = "[model]\nconv = 'direct'";

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
    let mut faults = changes(&saved(checkpoint)?, config, &[]);
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
