//! Prepares a run from its configuration: images, model, plan.

use std::sync::Arc;

use kiln_data::{DataConfig, DataSplits};
use kiln_engine::checkpoint::{Interval, Resume};
use kiln_engine::optim::Schedule;
use kiln_engine::parallel::nccl::Transport;
use kiln_engine::parallel::{BackendKind, CudaGraph, Plan, Probe, Recorded, Sampler, SamplerConfig, World, cut};
use kiln_objects::is_url;
use kiln_system::stop::Stop;
use kiln_system::{Error, Result, shown};
use kiln_training::{Backend, Classification, Loss, Network};

use super::terminal::warn;
use crate::config::{Config, Request, sketch};
use crate::launch::FixedMembership;

/// Prepares this process for the backend that the request chooses. It may restart the process: call it before anything
/// has an effect.
pub fn prepare_process(request: &Request) {
    kiln_training::prepare_process(sketch(request).map_or(BackendKind::Auto, |config| config.parallel.backend));
}

#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) splits: DataSplits,
    pub(super) fingerprint: String,
    pub(super) classes: usize,
    pub(super) plan: Arc<Plan>,
    pub(super) task: Arc<Classification>,
    /// Whether its devices share the processor.
    pub(super) is_processor: bool,
    /// Chosen by runs that may have several processes.
    pub(super) transport: Transport,
    /// What `--stages auto` or `--replicas-per-device auto` has chosen, by its name, and why.
    pub(super) placement: Option<(&'static str, String)>,
    /// What a replica takes on the slowest device of this process, if its share in an elastic run goes by that.
    pub(super) nanoseconds: Option<u64>,
    /// What is trained, once the model is there.
    pub(super) experiment: Vec<(String, String)>,
}

/// Opens the devices, reads the images, fixes the order of samples and the schedule.
pub(super) fn prepare(
    backend: &dyn Backend,
    config: &Config,
    membership: &dyn FixedMembership,
    stop: Stop,
) -> Result<Prepared> {
    let world = membership.world().clone();
    backend.check(&world, config.run.precision)?;
    backend.choose_kernels(config.run.deterministic);
    let threads = share_threads(config.run.threads, membership.local_processes());
    // The pool that CPU kernels and loaders share. Fails if there is one already, as in a test of several runs.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("compute-{i}"));
    drop(pool.build_global());
    let splits =
        super::loading::load(config).map_err(|error| located(&config.data, &config.checkpoint.resume, error))?;
    if world.hosted().start == 0 {
        splits.notes.iter().for_each(|note| warn(&format!("warning: {note}")));
    }
    let classes = class_count(config.model.num_classes, &splits)?;
    let plan = Arc::new(plan(config, &splits, world, threads, stop)?);
    let task = Arc::new(task(config, &splits));
    let (transport, is_processor) = (Transport::default(), backend.is_processor());
    let fingerprint = kiln_data::fingerprint(&splits);
    Ok(Prepared {
        fingerprint,
        splits,
        classes,
        plan,
        task,
        is_processor,
        transport,
        placement: None,
        nanoseconds: None,
        experiment: Vec::new(),
    })
}

/// Adds to an error about images what their folder is relative to: a saved run may have been made elsewhere.
fn located(DataConfig { dir, .. }: &DataConfig, resume: &Resume, error: Error) -> Error {
    let is_usual = *dir == DataConfig::default().dir && *resume == Resume::Off;
    let is_elsewhere = dir.is_relative() && !is_usual && !is_url(dir) && !dir.exists();
    let is_about_images = matches!(error, Error::Data(_) | Error::Io { .. });
    match std::env::current_dir() {
        Ok(here) if is_elsewhere && is_about_images => {
            let (dir, here) = (shown(dir), shown(&here));
            Error::Data(format!("{error}; '{dir}' is relative to '{here}'"))
        }
        _ => error,
    }
}

pub(super) fn task(config: &Config, splits: &DataSplits) -> Classification {
    let task = Classification::new(&config.data, splits, config.model.architecture(), config.run.seed);
    task.with_drop_path(config.model.drop_path)
}

/// A network with drawn weights on the first replica's device, part of it frozen.
pub(super) fn blank_network(backend: &dyn Backend, config: &Config, outputs: usize) -> Result<Box<dyn Network>> {
    let loss = Loss::from(&config.optim);
    backend.network(config.parallel.gpu_ids[0], &config.model, outputs, loss, config.run.seed)
}

/// The threads of this process; for `threads` 0 its share of the machine's.
pub(super) fn share_threads(threads: usize, local_processes: usize) -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    if threads == 0 { (available / local_processes).max(1) } else { threads }
}

fn class_count(wanted: usize, splits: &DataSplits) -> Result<usize> {
    let present = splits.train.classes().len();
    match wanted {
        0 => Ok(present),
        wanted if wanted >= present => Ok(wanted),
        wanted => Err(Error::usage(format!(
            "model.num_classes is '{wanted}', but the data set has {present} classes; use 0 for one output per class"
        ))),
    }
}

fn plan(config: &Config, splits: &DataSplits, world: World, threads: usize, stop: Stop) -> Result<Plan> {
    let run = &config.run;
    let costs: Vec<f64> = config.model.architecture().units().into_iter().map(|(_, cost)| cost).collect();
    cut(&costs, world.stages, &config.parallel.split_points)?;
    let sampler = Sampler::new(SamplerConfig {
        len: splits.train.len(),
        world_size: world.size,
        batch_size: config.parallel.batch_size,
        accumulation_steps: run.accumulation_steps,
        seed: run.seed,
        drop_last: config.data.drop_last,
        shuffle: true,
        limit_micro_batches: run.limit_train_batches,
        repeats: config.data.repeated_augmentation,
    })?;
    let sampler = sampler.in_windows(splits.train.shards(), config.data.window);
    let lengths = [run.epochs, sampler.steps_per_epoch()];
    let rate = config.optim.learning_rate;
    let schedule = Schedule::new(&config.schedule, rate, world.size, run.accumulation_steps, lengths);
    let limits = [run.max_steps, run.stop_after * sampler.steps_per_epoch()];
    let last_step = limits.into_iter().filter(|limit| *limit > 0).fold(schedule.total_steps, usize::min);
    let (save_every_steps, save_every_epochs) = match config.checkpoint.every {
        // The copy of the best model needs its checkpoint.
        Interval::Never if !config.checkpoint.path.as_os_str().is_empty() => (0, usize::MAX),
        Interval::Never => (0, 0),
        Interval::Steps(steps) => (steps, 0),
        Interval::Epochs(epochs) => (0, epochs),
    };
    Ok(Plan {
        sync_bn: config.parallel.sync_bn,
        bn_statistics: config.parallel.bn_statistics,
        reduce_precision: config.parallel.reduce_precision,
        precision: config.run.precision,
        batch_size: config.parallel.batch_size,
        epochs: run.epochs,
        last_step,
        validation_samples: splits.validation.len(),
        limit_validation: run.limit_val_batches,
        optim: config.optim.clone(),
        seed: run.seed,
        early_stopping: run.early_stopping,
        keeps_many: config.checkpoint.keep_best > 1,
        report_samples: run.log_samples,
        probe: run.log_units.then(Probe::default),
        world,
        sampler,
        schedule,
        save_every_steps,
        save_every_epochs,
        split_points: config.parallel.split_points.clone(),
        shard_optimizer: config.parallel.shard_optimizer,
        grad_checkpointing: config.parallel.grad_checkpointing,
        recorded: if config.parallel.cuda_graph == CudaGraph::On { Recorded::ByDevice } else { Recorded::No },
        check_every: config.parallel.check_every,
        roll_back: config.parallel.roll_back,
        threads,
        stop,
    })
}
