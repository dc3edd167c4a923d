//! Measures a checkpoint on the validation images, sharded over the replicas' devices.

use std::path::Path;
use std::time::Instant;

use burn::module::AutodiffModule;
use burn::train::InferenceStep;

use super::backend::{Program, dispatch};
use super::prepare::{Prepared, fresh_model, prepare};
use super::resume::tensors;
use super::terminal::say;
use crate::checkpoint;
use crate::config::{Config, Request, resolve};
use crate::error::{Error, Result};
use crate::launch::alone;
use crate::model::{ResNet, Tally, load_state};
use crate::parallel::{BackendKind, HostBackend};
use crate::state::{StateDict, from_safetensors};
use crate::stop::Stop;

/// Prints loss, top-1 and top-5 of `path`: a checkpoint, a run's directory or a safetensors file. A checkpoint brings
/// its configuration along; every layer of `request` wins over it.
pub fn evaluate(path: &Path, mut request: Request) -> Result<()> {
    let directory =
        if path.join("checkpoints").is_dir() { path.join("checkpoints/latest") } else { path.to_path_buf() };
    let (weights, origin) = weights(&directory)?;
    let saved = directory.join("config.toml");
    if saved.is_file() {
        request.files.insert(0, saved);
    }
    let config = resolve(&request)?.config;
    dispatch(config.parallel.backend, Evaluation { config, weights, origin })
}

struct Evaluation {
    config: Config,
    weights: StateDict,
    /// Where the weights come from.
    origin: String,
}

impl Program for Evaluation {
    type Output = ();

    fn run<B: HostBackend>(self, _backend: BackendKind) -> Result<()> {
        let Self { config, weights, origin } = self;
        let prepared = prepare::<B>(&config, alone(&config.parallel).as_ref(), Stop::new())?;
        let model = load_state(fresh_model::<B>(&config, prepared.classes)?, &weights, &origin)?.valid();
        let began = Instant::now();
        let tally = sharded(&model, &prepared)?;
        let seconds = began.elapsed().as_secs_f64();
        say(&format!("weights     {origin}"));
        say(&format!("images      {}", tally.samples));
        say(&format!("speed       {:.0} images/s", tally.samples as f64 / seconds));
        say(&format!("loss        {:.4}", tally.mean_loss()));
        say(&format!("top-1       {:.2} % ({} of {})", 100.0 * tally.accuracy(), tally.top1, tally.samples));
        say(&format!("top-5       {:.2} % ({} of {})", 100.0 * tally.top5_accuracy(), tally.top5, tally.samples));
        Ok(())
    }
}

/// The averaged weights of a checkpoint where it has them, as in the validation during training.
fn weights(path: &Path) -> Result<(StateDict, String)> {
    if !path.exists() {
        let remedy = "give a checkpoint's directory, a run's directory or a safetensors file with --checkpoint";
        return Err(Error::Checkpoint(format!("'{}' does not exist; {remedy}", path.display())));
    }
    if path.is_file() {
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        return Ok((from_safetensors(&bytes, path)?.0, path.display().to_string()));
    }
    let loaded = checkpoint::read(path)?;
    let averaged = loaded.files.contains_key("average.safetensors");
    let name = if averaged { "average.safetensors" } else { "model.safetensors" };
    Ok((tensors(&loaded, name)?, loaded.path.join(name).display().to_string()))
}

/// Each replica's shard on a thread of its own; the sums do not depend on how many there are.
fn sharded<B: HostBackend>(model: &ResNet<B>, prepared: &Prepared) -> Result<Tally> {
    let plan = &prepared.plan;
    let shard = |replica: usize, model: ResNet<B>| -> Result<Tally> {
        B::share_threads(plan.threads, plan.world.size());
        let device = B::open(plan.world.device_of(replica))?;
        let model = burn::module::Module::to_device(model, &device);
        let mut tally = Tally::default();
        for batch in plan.validation_shard(replica)?.0 {
            tally += model.step(plan.evaluation_batch(batch?, &device));
        }
        Ok(tally)
    };
    std::thread::scope(|scope| {
        let shard = &shard;
        let threads: Vec<_> = (0..plan.world.size())
            .map(|replica| {
                let model = model.clone();
                scope.spawn(move || shard(replica, model))
            })
            .collect();
        let mut sum = Tally::default();
        for (replica, thread) in threads.into_iter().enumerate() {
            let died = |_| Error::Training(format!("replica {replica} panicked during the evaluation"));
            sum += thread.join().map_err(died)??;
        }
        Ok(sum)
    })
}
