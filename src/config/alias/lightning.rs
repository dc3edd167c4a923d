//! Keys of Lightning's trainer, of lightning-hydra-template and of Hydra.

use std::time::Duration;

use super::super::time_limit;
use super::Means::{Nothing, Read};
use super::placement::{DEVICES, NODES, devices_per_machine, machines};
use super::{Alias, BF16, F16, F32, LOADERS, LOGGER, Line};

/// Batch-size keys that are ambiguous: per replica or global.
pub(super) const BATCHES: &str = "data.batch_size datamodule.batch_size";

pub(super) const CHECKPOINT: super::Means =
    Read(|value, _| Ok(vec![("checkpoint.resume", if value == "last" { "latest" } else { value }.into())]));

const CLIP: &str = "trainer.gradient_clip_algorithm";

pub(super) const WORDS: &[Alias] = &[
    Alias::key("trainer.max_epochs", "run.epochs"),
    Alias::word("trainer.max_steps", Read(max_steps)),
    Alias::word("trainer.max_time", Read(max_time)),
    Alias::word("trainer.limit_train_batches", Read(|value, _| limit("run.limit_train_batches", value))),
    Alias::word("trainer.limit_val_batches", Read(|value, _| limit("run.limit_val_batches", value))),
    Alias::choice("trainer.fast_dev_run", "use --fast-dev-run, or --max-steps N for a number of steps")
        .of(&[("true", "run.fast_dev_run=true"), ("false", "run.fast_dev_run=false")]),
    Alias::key("trainer.accumulate_grad_batches", "run.accumulation_steps"),
    Alias::word("trainer.gradient_clip_val", Read(clip)),
    Alias::only(CLIP, "norm value", "use --clip-grad-norm or --clip-grad-value"),
    Alias::choice("trainer.precision", "weights are always f32: use --precision f32, bf16 or f16").of(&[
        ("32 32-true", F32),
        ("16 16-mixed", F16),
        ("bf16 bf16-mixed", BF16),
    ]),
    Alias::key("trainer.deterministic", "run.deterministic"),
    Alias::choice("trainer.strategy", "every replica holds the whole model; use --strategy ddp").of(&[
        ("auto", "parallel.strategy=auto"),
        ("ddp ddp_spawn ddp_find_unused_parameters_false ddp_find_unused_parameters_true dp", "parallel.strategy=ddp"),
        ("single_device", "parallel.strategy=single"),
    ]),
    Alias::choice("trainer.accelerator", "use --backend auto").of(&[
        ("auto", "parallel.backend=auto"),
        ("cpu", "parallel.backend=flex"),
        // Before version 1.5.
        ("ddp ddp_spawn dp", "parallel.strategy=ddp"),
        ("ddp_cpu", "parallel.strategy=ddp parallel.backend=flex"),
        ("gpu cuda", "parallel.backend=cuda"),
        ("mps", "parallel.backend=wgpu"),
    ]),
    Alias::word(DEVICES, Read(devices_per_machine)),
    Alias::word(NODES, Read(machines)),
    Alias::key("trainer.sync_batchnorm", "parallel.sync_bn"),
    Alias::key("trainer.default_root_dir", "run.output_dir"),
    Alias::key("trainer.log_every_n_steps", "run.log_every"),
    Alias::only(
        "trainer.num_sanity_val_steps",
        "0",
        "remove it: there is no validation before training; --dry-run checks everything",
    ),
    Alias::only(
        "trainer.check_val_every_n_epoch",
        "1",
        "every epoch is validated; --limit-val-batches N shortens that",
    ),
    Alias::only(
        "trainer.val_check_interval",
        "1.0",
        "validation is at the end of every epoch; --limit-val-batches N shortens it",
    ),
    Alias::choice("trainer.enable_progress_bar", "use --progress plain")
        .of(&[("true", ""), ("false", "run.progress=plain")]),
    Alias::only(
        "trainer.enable_checkpointing",
        "true",
        "the end of a run is always saved; '--checkpoint-every never' saves nothing else",
    ),
    Alias::choice("trainer.profiler", "use --profile").of(&[("simple", "run.profile=true")]),
    Alias::key("seed seed_everything", "run.seed"),
    Alias::key("lr optim.lr optimizer.lr model.lr model.learning_rate model.optimizer.lr", "optim.learning_rate"),
    Alias::key("optimizer.weight_decay model.optimizer.weight_decay", "optim.weight_decay"),
    Alias::key("optimizer.momentum model.optimizer.momentum", "optim.momentum"),
    Alias::key(BATCHES, "parallel.batch_size"),
    Alias::key("data.data_dir datamodule.data_dir", "data.dir"),
    Alias::word("data.num_workers datamodule.num_workers", LOADERS),
    Alias::only("data.pin_memory datamodule.pin_memory", "true false", "the backend pins memory where that helps"),
    Alias::word("ckpt_path", CHECKPOINT),
    Alias::key("callbacks.early_stopping.patience", "run.early_stopping"),
    Alias::key("callbacks.model_checkpoint.save_top_k", "checkpoint.keep_best"),
    Alias::word("callbacks.model_checkpoint.every_n_epochs", Read(|value, _| interval(value, "epochs"))),
    Alias::word("callbacks.model_checkpoint.every_n_train_steps", Read(|value, _| interval(value, "steps"))),
    Alias::word("logger", LOGGER),
    Alias::only("trainer.logger", "true false", "use --tensorboard"),
    Alias::choice("debug", "use --fast-dev-run, --limit-train-batches N or --profile")
        .of(&[("fdr", "run.fast_dev_run=true"), ("profiler", "run.profile=true")]),
    Alias::key("hydra.run.dir", "run.output_dir"),
    Alias::word("hydra.sweep.dir", Nothing("use 'train sweep KEY=VALUE,VALUE --output-dir DIR'")),
];

fn max_steps(value: &str, _: &Line) -> super::Read {
    // -1 means no limit in Lightning.
    Ok(vec![("run.max_steps", if value == "-1" { "0" } else { value }.into())])
}

/// `DD:HH:MM:SS`.
fn max_time(value: &str, _: &Line) -> super::Read {
    let parts: Option<Vec<u64>> = value.split(':').map(|part| part.parse().ok()).collect();
    let seconds = |parts: &[u64]| {
        let [days, hours, minutes, seconds] = *<&[u64; 4]>::try_from(parts).ok()?;
        let hours = days.checked_mul(24)?.checked_add(hours)?;
        hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?.checked_add(seconds)
    };
    match parts.as_deref().and_then(seconds) {
        Some(seconds) => Ok(vec![("run.max_time", time_limit::format(Duration::from_secs(seconds)))]),
        None => Err(("a time, as in 00:12:00:00", "use --max-time 12h".into())),
    }
}

/// A number of batches per process, equal to the number of global micro-batches. `1.0` means all.
fn limit(key: &'static str, value: &str) -> super::Read {
    match value.parse::<u32>() {
        Ok(1..) => Ok(vec![(key, value.into())]),
        _ if value == "1.0" => Ok(vec![(key, "0".into())]),
        _ => {
            let remedy = format!("use {}", crate::config::flag::setting(key, "10"));
            Err(("a number of batches of at least 1, or 1.0 for all", remedy))
        }
    }
}

fn clip(value: &str, line: &Line) -> super::Read {
    let by_value = line.value(CLIP) == Some("value");
    Ok(vec![(if by_value { "optim.clip_grad_value" } else { "optim.clip_grad_norm" }, value.into())])
}

fn interval(value: &str, unit: &str) -> super::Read {
    Ok(vec![("checkpoint.every", format!("{value}{unit}"))])
}
