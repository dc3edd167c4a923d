//! The plan that is printed before the first step: what will run, where, and how large it is.

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

use kiln_data::{DataConfig, Source, synthetic};
use kiln_engine::optim::{LossKind, OptimConfig, OptimizerKind, ScheduleKind, WarmupShape};
use kiln_engine::parallel::{BackendKind, BnStatistics, CudaGraph, StrategyKind, World};
use kiln_ops::{Algorithm, Precision};
use kiln_system::{printable, shown};
use kiln_training::{Backend, ParameterCount, Stem, backend_name};

use super::initial::ModelSummary;
use super::prepare::Prepared;
use super::resources::{bytes, bytes_of_images, bytes_of_process, bytes_per_replica};
use crate::config::Config;
use crate::config::schema::enumerate;
use crate::metrics::Card;

pub(super) fn overview(
    backend: &dyn Backend,
    config: &Config,
    prepared: &Prepared,
    about: &ModelSummary,
    directory: Option<&Path>,
) -> String {
    let mut text = String::new();
    let mut line = |subject: &str, words: String| {
        writeln!(text, "{subject:<10}  {}", printable(&words)).expect("writing to a string cannot fail");
    };
    let (version, name, seed) = (env!("CARGO_PKG_VERSION"), backend_name(backend.kind()), config.run.seed);
    let determinism = match (config.run.deterministic, prepared.is_processor) {
        (false, _) => "",
        (true, true) => ", deterministic",
        (true, false) => ", deterministic between replicas (GPU kernels may sum in another order in another run)",
    };
    line("kiln", format!("{version}, {name} backend, seed {seed}{determinism}"));
    line("world", world(config, prepared));
    prepared.placement.iter().for_each(|(subject, words)| line(subject, words.clone()));
    for (slot, index) in prepared.plan.world.devices.iter().enumerate() {
        line("device", format!("{}: {}", backend.describe(*index), hosted(&prepared.plan.world, slot)));
        card(backend, *index).into_iter().for_each(|card| line("", card.to_string()));
    }
    backend.libraries().into_iter().for_each(|words| line("", words));
    let World { size, stages, .. } = prepared.plan.world;
    let elsewhere = size * stages - prepared.plan.world.hosted().len();
    if elsewhere > 0 {
        let noun = match (elsewhere, stages) {
            (1, 1) => "replica",
            (_, 1) => "replicas",
            (1, _) => "stage of a replica",
            _ => "stages of replicas",
        };
        line("others", format!("{elsewhere} {noun} in other processes"));
    }
    let has_cards = !prepared.is_processor && prepared.plan.world.devices.len() > 1;
    if elsewhere > 0 || has_cards || prepared.transport.joins_devices() {
        line("engine", prepared.transport.describe());
    }
    experiment(config, prepared, about).into_iter().for_each(|(subject, words)| line(&subject, words));
    line("memory", memory(config, prepared, about.parameters));
    if let Some(directory) = directory {
        line("output", shown(directory));
    }
    text
}

/// What is trained, wherever it runs: subjects and words.
pub(super) fn experiment(config: &Config, prepared: &Prepared, about: &ModelSummary) -> Vec<(String, String)> {
    let data = data(&config.data, prepared);
    let model = model(config, prepared, about.parameters);
    let [batch, schedule, optimizer] = [batch(config, prepared), schedule(prepared), optimizer(&config.optim)];
    let notes = sample(config.data.source, prepared).into_iter().map(|note| ("", note));
    let weights = about.notes.iter().map(|note| ("weights", note.clone()));
    let rest = [("batch", batch), ("schedule", schedule), ("optimizer", optimizer)];
    let all = [("data", data)].into_iter().chain(notes).chain([("model", model)]).chain(weights).chain(rest);
    all.map(|(subject, words)| (subject.to_string(), words)).collect()
}

/// Details of the device with this index, if it is one of NVIDIA's.
fn card(backend: &dyn Backend, index: usize) -> Option<Card> {
    let is_cuda = matches!(backend.kind(), BackendKind::Cuda | BackendKind::Tch) && !backend.is_processor();
    is_cuda.then(|| Card::of(index)).flatten()
}

/// What a device hosts: replicas or, if they have stages, some stages of them.
fn hosted(world: &World, slot: usize) -> String {
    let (size, workers) = (world.size, world.shares[slot].clone());
    let replicas = |stage: usize| {
        let of_stage = stage * size..(stage + 1) * size;
        let [start, end] = [workers.start.max(of_stage.start), workers.end.min(of_stage.end)];
        (start - of_stage.start)..(end - of_stage.start)
    };
    if world.stages == 1 {
        return listed("replica", replicas(0));
    }
    let stages: Vec<usize> = (workers.start / size..workers.end.div_ceil(size)).collect();
    let same = stages.chunk_by(|one, next| replicas(*one) == replicas(*next));
    let part = |stages: &[usize]| {
        let numbers = stages[0]..stages[0] + stages.len();
        format!("{} ({})", listed("replica", replicas(stages[0])), listed("stage", numbers))
    };
    same.map(part).collect::<Vec<_>>().join(", ")
}

/// As in `replica 3`, `stages 0, 1` and `replicas 0-7`.
fn listed(what: &str, numbers: Range<usize>) -> String {
    match numbers.len() {
        1 => format!("{what} {}", numbers.start),
        ..=4 => format!("{what}s {}", numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(", ")),
        _ => format!("{what}s {}-{}", numbers.start, numbers.end - 1),
    }
}

fn world(config: &Config, prepared: &Prepared) -> String {
    let plan = &prepared.plan;
    let size = plan.world.size;
    let stages = if plan.world.stages > 1 { format!(" in {} stages", plan.world.stages) } else { String::new() };
    let strategy = match config.parallel.strategy() {
        StrategyKind::Single | StrategyKind::Auto => return format!("1 replica{stages}"),
        StrategyKind::Ddp => "ddp",
    };
    let statistics = match (plan.sync_bn, plan.bn_statistics) {
        (true, _) => "synchronised batch-norm",
        (false, BnStatistics::First) => "local batch-norm",
        (false, BnStatistics::Mean) => "local batch-norm with averaged running statistics",
    };
    let processes = match plan.world.processes() {
        1 => String::new(),
        count => format!(" in {count} processes"),
    };
    let threads = if plan.threads == 1 { "1 thread".into() } else { format!("{} threads", plan.threads) };
    format!("{size} replicas{stages}{processes}, {strategy}, {statistics}, {threads}")
}

fn data(config: &DataConfig, prepared: &Prepared) -> String {
    let source = match config.source {
        Source::Synthetic => "synthetic".into(),
        source => format!("{} in {}", format!("{source:?}").to_lowercase(), shown(&config.dir)),
    };
    let (train, validation) = (&prepared.splits.train, &prepared.splits.validation);
    let size = |[height, width]: [usize; 2]| format!("{width}x{height}");
    let own = if train.size() == validation.size() { String::new() } else { format!(" of {}", size(train.size())) };
    format!(
        "{source}: {} training{own} and {} validation images of {}, {} classes",
        train.len(),
        validation.len(),
        size(validation.size()),
        train.classes().len()
    )
}

/// The data set of a clone, instead of CIFAR.
fn sample(source: Source, prepared: &Prepared) -> Option<String> {
    let is_sample = prepared.splits.train.classes() == synthetic::CLASSES;
    let title = match source {
        Source::Cifar10 if is_sample => "CIFAR-10",
        Source::Cifar100 if is_sample => "CIFAR-100",
        _ => return None,
    };
    Some(format!("drawn images in the format of {title}, not {title} itself: download the real data with --download"))
}

fn model(config: &Config, prepared: &Prepared, parameters: ParameterCount) -> String {
    let stem = if config.model.stem == Stem::Cifar { "CIFAR" } else { "ImageNet" };
    let (architecture, width, classes) = (config.model.architecture(), config.model.width, prepared.classes);
    let precision = match config.run.precision {
        Precision::F32 => "f32",
        Precision::Bf16 => "bf16 with f32 weights",
        Precision::F16 => "f16 with f32 weights and a dynamic loss scale",
    };
    let convolutions = match (config.model.conv, prepared.is_processor) {
        (Algorithm::Auto, _) => "",
        (Algorithm::Direct, true) => ", direct convolutions",
        (Algorithm::Direct, false) => " (--conv has no effect on a GPU)",
    };
    let ParameterCount { all, trained } = parameters;
    let millions = all as f64 / 1e6;
    let trained = if trained < all { format!(" ({trained} of them are trained)") } else { String::new() };
    format!(
        "{architecture}, {stem} stem, width {width}, {classes} outputs, {millions:.2} M parameters{trained}, {precision}{convolutions}"
    )
}

fn batch(config: &Config, prepared: &Prepared) -> String {
    let (accumulated, views) = (config.run.accumulation_steps, config.data.views);
    let size = prepared.plan.world.size;
    let batch = prepared.plan.batch_size;
    let mut words = format!("{} images per step = {size} x {batch}", size * batch * accumulated);
    if accumulated > 1 {
        write!(words, " x {accumulated} accumulated").expect("writing to a string cannot fail");
    }
    if views > 1 {
        write!(words, ", in {views} views each").expect("writing to a string cannot fail");
    }
    if prepared.plan.grad_checkpointing {
        words.push_str(", activations computed again");
    }
    if config.parallel.cuda_graph == CudaGraph::On {
        words.push_str(", steps recorded and replayed");
    }
    if config.parallel.cudnn {
        words.push_str(", convolutions by cuDNN");
    }
    words
}

fn schedule(prepared: &Prepared) -> String {
    let (plan, schedule, config) = (&prepared.plan, &prepared.plan.schedule, &prepared.plan.schedule.config);
    // Rounded, as 3 x 0.025 in f64 is 0.07500000000000001.
    let [base, peak, last] = [schedule.base, schedule.peak, config.final_lr].map(|rate| rate as f32);
    let shape = match config.kind {
        ScheduleKind::Constant => "constant".into(),
        ScheduleKind::Cosine => format!("cosine to {last}"),
        ScheduleKind::Exponential => format!("exponentially to {last}"),
        ScheduleKind::Linear => format!("linear to {last}"),
        ScheduleKind::Poly => format!("to {last} by the power {}", config.gamma),
        ScheduleKind::Restarts => {
            let (period, factor) = (schedule.steps_of(config.restart_epochs), config.restart_factor);
            format!("cosines to {last}, the first in {period} steps, each {factor} times longer")
        }
        ScheduleKind::OneCycle => {
            let [epochs, rise] = [plan.sampler.steps_per_epoch(), (100.0 * config.onecycle_rise).round() as usize];
            let steps = plan.last_step;
            return format!(
                "{steps} steps, {epochs} per epoch; one cycle, up to {peak} in {rise} % of the steps, then down"
            );
        }
        ScheduleKind::Plateau => {
            let least = if last > 0.0 { format!(", at least {last}") } else { String::new() };
            let pause = match config.cooldown_epochs {
                0 => String::new(),
                cooldown => format!(", not counting {cooldown} after each drop"),
            };
            let (gamma, most) = (config.gamma, config.patience_epochs);
            format!(
                "x {gamma} when validations are no better than the best one for more than {most} in a row{pause}{least}"
            )
        }
        ScheduleKind::Step if config.milestones.is_empty() => {
            format!("x {} every {} steps", config.gamma, schedule.steps_of(config.step_epochs))
        }
        ScheduleKind::Step => {
            let milestones: Vec<_> = schedule.milestones().collect();
            format!("x {} at steps {}", config.gamma, enumerate(&milestones, "and"))
        }
    };
    let from = match (schedule.warmup_steps, schedule.counts_warmup(), config.kind) {
        (0, ..) | (_, _, ScheduleKind::Constant | ScheduleKind::Plateau) => "",
        (_, true, _) => ", counted from the start",
        (_, false, ScheduleKind::Step) => ", counted from the end of the warm-up",
        _ => "",
    };
    let when = if schedule.interval() > 1 { ", changed between epochs" } else { "" };
    let start = match schedule.warmup_steps {
        0 => peak.to_string(),
        steps if base == peak => format!("{peak} for {steps} steps"),
        steps if config.warmup_shape == WarmupShape::Constant => {
            format!("{base} for {steps} warm-up steps, {peak} after them")
        }
        steps => format!("from {base} to {peak} in {steps} warm-up steps"),
    };
    format!(
        "{} steps, {} per epoch; learning rate {start}, then {shape}{from}{when}",
        plan.last_step,
        plan.sampler.steps_per_epoch()
    )
}

fn optimizer(optim: &OptimConfig) -> String {
    let betas = format!("betas {} and {}", optim.beta1, optim.beta2);
    let mut words = match optim.optimizer {
        OptimizerKind::Sgd => {
            format!("SGD, {}momentum {}", if optim.nesterov { "Nesterov " } else { "" }, optim.momentum)
        }
        OptimizerKind::Adam => format!("Adam, {betas}"),
        OptimizerKind::AdamW => format!("AdamW, {betas}"),
        OptimizerKind::NAdamW => format!("NAdamW, {betas}"),
        OptimizerKind::Lamb => format!("LAMB, {betas}"),
        OptimizerKind::RmsProp => format!("RMSprop, alpha {}, momentum {}", optim.alpha, optim.momentum),
        OptimizerKind::Lars => format!("LARS, momentum {}, trust {}", optim.momentum, optim.trust_coefficient),
    };
    words.push_str(match optim.loss {
        LossKind::CrossEntropy => "",
        LossKind::Bce => ", binary cross-entropy",
        LossKind::Jsd => ", cross-entropy and Jensen-Shannon divergence of the views",
    });
    let exempt = if optim.decay_norm_bias { "" } else { " (not of batch-norm and biases)" };
    let options = [
        ("weight decay", optim.weight_decay, exempt),
        ("label smoothing", optim.label_smoothing, ""),
        ("gradient norm at most", optim.clip_grad_norm, ""),
        ("gradient values at most", optim.clip_grad_value, ""),
        ("averaged weights with decay", optim.ema_decay, ""),
    ];
    for (what, value, but) in options.into_iter().filter(|(_, value, _)| *value > 0.0) {
        write!(words, ", {what} {value}{but}").expect("writing to a string cannot fail");
    }
    if optim.backbone_lr_scale != 1.0 {
        write!(words, ", backbone learning rate x {}", optim.backbone_lr_scale)
            .expect("writing to a string cannot fail");
    }
    words
}

fn memory(config: &Config, prepared: &Prepared, parameters: ParameterCount) -> String {
    let replica = bytes(bytes_per_replica(config, prepared, parameters));
    if !prepared.is_processor {
        return format!("about {replica} per replica on its device (estimate)");
    }
    let [process, images] = [bytes_of_process(config, prepared, parameters), bytes_of_images(prepared)].map(bytes);
    format!("about {replica} per replica, {process} in this process including {images} of images (estimate)")
}
