//! Takes up an earlier run: finds its checkpoint, checks that it is the same experiment, and restores its state.

use std::path::{Path, PathBuf};

use burn::backend::Autodiff;

use super::prepare::Prepared;
use crate::checkpoint::{self, Loaded, Resume, RunState, Store, Which, differences, run_dir};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::{ResNet, Tally, Which as Tensors, flat, load_state};
use crate::parallel::{HostBackend, Position, StartingPoint};
use crate::state::{StateDict, from_safetensors};

/// Where numbered runs are made.
const RUNS: &str = "runs";

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
    "data.flip",
    "data.cutout",
    "data.drop_last",
    "data.image_size",
    "model",
    "optim.optimizer",
];

/// The run's directory, claimed, and the checkpoint to go on from.
pub(super) struct Origin {
    pub(super) directory: PathBuf,
    pub(super) checkpoint: Option<Loaded>,
}

/// Decides where the run writes and what it continues. Creates directories; call it last of all preparations.
pub(super) fn origin(config: &Config, warn: &mut dyn FnMut(String)) -> Result<Origin> {
    let named = Some(config.run.output_dir.clone()).filter(|dir| !dir.as_os_str().is_empty());
    let which = match &config.checkpoint.resume {
        Resume::Off => {
            let directory = match named {
                Some(dir) => run_dir::claim(&dir, false).map(|()| dir),
                None => run_dir::next(Path::new(RUNS)),
            };
            return Ok(Origin { directory: directory.map_err(elsewhere)?, checkpoint: None });
        }
        Resume::Path(path) => return from_path(path, named, warn),
        Resume::Latest => Which::Latest,
        Resume::Best => Which::Best,
    };
    let directory = named.or_else(|| run_dir::last(Path::new(RUNS))).ok_or_else(|| {
        Error::usage(format!("there is no run in '{RUNS}' to resume; name its directory with --output-dir"))
    })?;
    if !directory.join("checkpoints").is_dir() {
        return Err(Error::usage(format!(
            "'{}' holds no checkpoints to resume from; give another --output-dir, or start anew without --resume",
            directory.display()
        )));
    }
    let checkpoint = Store::open(&directory)?.load(&which, warn)?;
    Ok(Origin { directory, checkpoint: Some(checkpoint) })
}

/// The remedy when the system refuses the run's directory.
fn elsewhere(error: Error) -> Error {
    match error {
        Error::Io { .. } => Error::usage(format!("{error}; give another --output-dir")),
        other => other,
    }
}

/// `path` is a checkpoint, or a run whose latest checkpoint is meant.
fn from_path(path: &Path, named: Option<PathBuf>, warn: &mut dyn FnMut(String)) -> Result<Origin> {
    if path.join("checkpoints").is_dir() {
        let checkpoint = Store::open(path)?.load(&Which::Latest, warn)?;
        let directory = named.unwrap_or_else(|| path.to_path_buf());
        run_dir::claim(&directory, true).map_err(elsewhere)?;
        return Ok(Origin { directory, checkpoint: Some(checkpoint) });
    }
    let checkpoint = checkpoint::read(path)?;
    let run = checkpoint.path.canonicalize().ok().and_then(|path| Some(path.parent()?.parent()?.to_path_buf()));
    let directory = named.or(run).ok_or_else(|| {
        Error::usage(format!("'{}' is in no run's directory; name one with --output-dir", path.display()))
    })?;
    run_dir::claim(&directory, true).map_err(elsewhere)?;
    Ok(Origin { directory, checkpoint: Some(checkpoint) })
}

/// A restored run.
pub(super) struct Restored<B: HostBackend> {
    pub(super) model: ResNet<Autodiff<B>>,
    pub(super) start: StartingPoint,
    pub(super) state: RunState,
}

/// Restores model, optimizer, average and position, after making sure that the run is the same experiment.
pub(super) fn restore<B: HostBackend>(
    config: &Config,
    prepared: &Prepared,
    model: ResNet<Autodiff<B>>,
    checkpoint: &Loaded,
) -> Result<Restored<B>> {
    let state = RunState::from_json(file(checkpoint, "state.json")?, &checkpoint.path.join("state.json"))?;
    same_experiment(config, prepared, checkpoint, &state)?;
    let origin = checkpoint.path.display().to_string();
    let model = load_state(model, &tensors(checkpoint, "model.safetensors")?, &origin)?;
    let averaging = config.optim.ema_decay > 0.0 && checkpoint.files.contains_key("average.safetensors");
    let average = averaging.then(|| averaged_values(model.clone(), checkpoint, &origin)).transpose()?;
    let position = position(&state, prepared);
    let start = StartingPoint { position, optimizer: Some(tensors(checkpoint, "optimizer.safetensors")?), average };
    Ok(Restored { model, start, state })
}

fn averaged_values<B: HostBackend>(
    model: ResNet<Autodiff<B>>,
    checkpoint: &Loaded,
    origin: &str,
) -> Result<Vec<Vec<f32>>> {
    let model = load_state(model, &tensors(checkpoint, "average.safetensors")?, origin)?;
    let host = |tensor: burn::tensor::Tensor<B, 1>| tensor.into_data().iter::<f32>().collect();
    Ok(flat(&model, Tensors::All).into_iter().map(host).collect())
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
    Ok(from_safetensors(file(checkpoint, name)?, &checkpoint.path.join(name))?.0)
}

fn same_experiment(config: &Config, prepared: &Prepared, checkpoint: &Loaded, state: &RunState) -> Result<()> {
    if config.checkpoint.force_config {
        return Ok(());
    }
    let saved = String::from_utf8_lossy(file(checkpoint, "config.toml")?);
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
