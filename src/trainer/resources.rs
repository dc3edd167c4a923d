//! What a run needs of its machine, as estimates: memory, and room on the disk for a checkpoint.

use std::path::Path;

use kiln_engine::nn::is_frozen;
use kiln_engine::optim::{OptimConfig, OptimizerKind};
use kiln_engine::parallel::unit_of;
use kiln_ops::Precision;
use kiln_training::{Backend, Network, ParameterCount, activation_elements};
use rustix::fs::statvfs;
use sysinfo::System;

use super::prepare::Prepared;
use crate::config::Config;
use crate::config::flag::setting;
use crate::study::planning::Unit;

const FLOAT: usize = 4;

/// Bytes of a process with the smallest network and no images (measured: 0.14 GiB on flex, 0.16 GiB on tch).
const PROGRAM: f64 = 160.0 * 1024.0 * 1024.0;

/// The warnings if `local_processes` processes such as this one need more memory than the machine has, a checkpoint
/// more room than its disk, the network larger images, or a half type is no faster. Devices with memory of their own
/// are not asked.
pub(super) fn cautions(
    backend: &dyn Backend,
    config: &Config,
    prepared: &Prepared,
    parameters: ParameterCount,
    local_processes: usize,
) -> Vec<String> {
    let needed = bytes_of_process(config, prepared, parameters) * local_processes as f64;
    let machine = memory_of_machine().filter(|machine| backend.is_processor() && needed > *machine);
    let memory = machine.map(|machine| {
        format!(
            "warning: training takes about {} of memory (estimate), but this machine has {}; lower --batch-size, and \
             raise --accumulation-steps for the same global batch",
            bytes(needed),
            bytes(machine)
        )
    });
    let needed = (FLOAT * (weights(&config.optim, parameters) + slots(&config.optim) * parameters.trained)) as f64;
    let free = free_space(&config.run.output_dir).filter(|free| needed > *free);
    let disk = free.map(|free| {
        format!(
            "warning: a checkpoint takes about {} (estimate), but its disk has {} left; make room, or give \
             --output-dir on another disk",
            bytes(needed),
            bytes(free)
        )
    });
    let slow = slow_precision(backend, config.run.precision)
        .map(|slow| format!("warning: {slow}; it saves memory, and --precision f32 rounds less"));
    memory.into_iter().chain(disk).chain(small_images(config, prepared)).chain(slow).collect()
}

/// The reason if a step in `precision` is not faster than in f32.
pub(super) fn slow_precision(backend: &dyn Backend, precision: Precision) -> Option<String> {
    let reason = "this processor or backend has no instructions for it";
    (!backend.is_fast_in(precision)).then(|| format!("here {} is no faster than f32: {reason}", precision.name()))
}

/// The warning if small images are enlarged for an untrained network.
fn small_images(config: &Config, prepared: &Prepared) -> Option<String> {
    let (side, size) = (prepared.splits.small_side?, config.data.image_size);
    config.model.pretrained.is_empty().then(|| {
        let side = side.to_string();
        let fitting = [("data.image_size", &side[..]), ("model.stem", "cifar"), ("data.resized_crop", "0")];
        let fitting = fitting.into_iter().chain([("data.center_crop", "0")]);
        let flags = fitting.map(|(key, value)| setting(key, value)).collect::<Vec<_>>().join(" ");
        format!("warning: images of {side} pixels are enlarged to {size}, which only takes time; use {flags}")
    })
}

/// The memory that this process may use, in bytes.
pub(super) fn memory_of_machine() -> Option<f64> {
    let mut system = System::new();
    system.refresh_memory();
    let limit = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    Some(system.total_memory().min(limit)).filter(|bytes| *bytes > 0).map(|bytes| bytes as f64)
}

/// Bytes that are free for this user where a directory is, or will be made.
fn free_space(directory: &Path) -> Option<f64> {
    let present = directory.ancestors().find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("."));
    let system = statvfs(present).ok()?;
    Some(system.f_bavail as f64 * system.f_frsize as f64)
}

fn weights(optim: &OptimConfig, parameters: ParameterCount) -> usize {
    (1 + usize::from(optim.ema_decay > 0.0)) * parameters.all
}

/// Numbers that the optimizer keeps for each parameter.
fn slots(optim: &OptimConfig) -> usize {
    match optim.optimizer {
        OptimizerKind::Sgd | OptimizerKind::Lars => 1,
        _ => 2,
    }
}

/// What this process takes of a processor's memory: its replicas, the images that it keeps, the program.
pub(super) fn bytes_of_process(config: &Config, prepared: &Prepared, parameters: ParameterCount) -> f64 {
    let world = &prepared.plan.world;
    let replicas = world.hosted().len() as f64 / world.stages as f64;
    bytes_per_replica(config, prepared, parameters) * replicas + bytes_of_images(prepared) + PROGRAM
}

pub(super) fn bytes_of_images(prepared: &Prepared) -> f64 {
    (prepared.splits.train.bytes() + prepared.splits.validation.bytes()) as f64
}

/// Weights, gradients and optimizer state of a replica, the activations that its backward pass needs, and what its
/// largest unit computes before any of that is freed. Of units that are computed again those are what they begin with,
/// and all of the largest one.
pub(super) fn bytes_per_replica(config: &Config, prepared: &Prepared, parameters: ParameterCount) -> f64 {
    let numbers = weights(&config.optim, parameters) + (1 + slots(&config.optim)) * parameters.trained;
    let plan = &prepared.plan;
    let images = config.data.views * plan.batch_size.min(plan.sampler.len().div_ceil(plan.world.size));
    // Absurd settings may overflow the product.
    let elements = activation_elements(&config.model, prepared.task.train.size());
    // Nothing goes back to the units before the first trained one.
    let is_frozen = |layers: &[String]| layers.iter().all(|layer| is_frozen(&config.model.freeze, layer));
    let units = config.model.architecture().units();
    let frozen = units.iter().take_while(|(layers, _)| is_frozen(layers)).count();
    let largest = elements.iter().map(|[kept, _]| *kept).max().unwrap_or(0);
    let kept: usize = if config.parallel.grad_checkpointing {
        largest + elements.iter().skip(frozen.saturating_sub(1)).map(|[_, passed]| *passed).sum::<usize>()
    } else {
        elements.iter().skip(frozen).map(|[kept, _]| *kept).sum()
    };
    let of_image = kept + largest;
    (FLOAT * numbers) as f64 + config.run.precision.bytes() as f64 * images as f64 * of_image as f64
}

/// The memory of each unit of `network`. Each unit except the last passes on `passed` bytes.
pub(super) fn units(config: &Config, prepared: &Prepared, network: &dyn Network, passed: &[usize]) -> Vec<Unit> {
    let elements = activation_elements(&config.model, prepared.task.train.size());
    let of_batch = (config.run.precision.bytes() * config.data.views * prepared.plan.batch_size) as f64;
    let kept = elements.into_iter().map(|[kept, _]| Unit { kept: of_batch * kept as f64, ..Unit::default() });
    let mut units: Vec<Unit> = kept.collect();
    units.iter_mut().zip(passed).for_each(|(unit, passed)| unit.passed = *passed as f64);
    if config.parallel.grad_checkpointing {
        let share = config.run.precision.bytes() as f64 / FLOAT as f64;
        units.iter_mut().for_each(|unit| (unit.again, unit.kept) = (unit.kept, share * unit.passed));
    }
    let copies = 1 + usize::from(config.optim.ema_decay > 0.0);
    let of_model = prepared.task.units();
    for tensor in network.tensors() {
        let own = unit_of(&of_model, &tensor.name).and_then(|unit| units.get_mut(unit));
        let (Some(unit), bytes) = (own, (FLOAT * tensor.shape.iter().product::<usize>()) as f64) else { continue };
        let trained = if tensor.is_trained { bytes } else { 0.0 };
        unit.state += copies as f64 * bytes + (1 + slots(&config.optim)) as f64 * trained;
        unit.gradients += trained;
    }
    units
}

pub(super) fn bytes(count: f64) -> String {
    let mib = count / (1u64 << 20) as f64;
    if mib < 1024.0 { format!("{mib:.0} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}
