//! The table of flags and their keys.
//!
//! The command line builds its options from it, and messages take their remedies from it, so a remedy is always an
//! existing flag. Names of other trainers with exactly the same meaning are listed here, those that need a translation
//! in [`super::alias`]. The meaning of a flag is written once, above its key in `config/default.toml`.

use crate::serve::USUAL;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// A value of its key's type, shown under this name in the help.
    Value(&'static str),
    Choice,
    /// An optional value: its name in the help, and the value if none is given.
    Optional(&'static str, &'static str),
    /// Nothing: the flag itself means `true`, or `false` for a `--no-` flag.
    Nothing(bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag {
    /// The name without `--`, in kebab-case.
    pub long: &'static str,
    /// Synonyms, including those of other trainers.
    pub aliases: &'static [&'static str],
    /// The key it sets, as in `run.epochs`.
    pub key: &'static str,
    pub takes: Takes,
}

impl Flag {
    const fn value(long: &'static str, key: &'static str, name: &'static str) -> Self {
        Self { long, aliases: &[], key, takes: Takes::Value(name) }
    }

    const fn choice(long: &'static str, key: &'static str) -> Self {
        Self { long, aliases: &[], key, takes: Takes::Choice }
    }

    const fn optional(long: &'static str, key: &'static str, name: &'static str, missing: &'static str) -> Self {
        Self { long, aliases: &[], key, takes: Takes::Optional(name, missing) }
    }

    const fn on(long: &'static str, key: &'static str) -> Self {
        Self { long, aliases: &[], key, takes: Takes::Nothing(true) }
    }

    const fn off(long: &'static str, key: &'static str) -> Self {
        Self { long, aliases: &[], key, takes: Takes::Nothing(false) }
    }

    const fn or(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }
}

#[derive(Debug)]
pub struct Heading {
    pub title: &'static str,
    /// Whether the flags also apply without training, as in `train evaluate`.
    pub evaluates: bool,
    pub flags: &'static [Flag],
}

const fn of_training(title: &'static str) -> Heading {
    Heading { title, evaluates: false, flags: &[] }
}

const fn of_both(title: &'static str) -> Heading {
    Heading { title, evaluates: true, flags: &[] }
}

impl Heading {
    const fn over(self, flags: &'static [Flag]) -> Self {
        Self { flags, ..self }
    }
}

/// Every flag that sets a key, by heading.
pub const HEADINGS: &[Heading] = &[
    of_training("Training").over(&[
        Flag::value("epochs", "run.epochs", "N").or(&["num-epochs", "num-train-epochs", "train-epochs"]),
        Flag::value("accumulation-steps", "run.accumulation_steps", "N")
            .or(&["grad-accum-steps", "gradient-accumulation-steps"]),
        Flag::value("max-steps", "run.max_steps", "N").or(&["train-steps"]),
        Flag::value("max-time", "run.max_time", "TIME"),
        Flag::value("early-stopping", "run.early_stopping", "EPOCHS"),
        Flag::value("limit-train-batches", "run.limit_train_batches", "N"),
        Flag::value("seed", "run.seed", "N").or(&["seed-everything"]),
        Flag::on("mlflow", "run.mlflow"),
        Flag::optional("serve", "run.serve", "ADDRESS", USUAL),
        Flag::on("fast-dev-run", "run.fast_dev_run"),
        Flag::on("dry-run", "run.dry_run"),
    ]),
    of_both("Data").over(&[
        Flag::choice("data", "data.source"),
        Flag::value("data-dir", "data.dir", "DIR").or(&["data-path"]),
        Flag::on("download", "data.download"),
        Flag::value("image-size", "data.image_size", "N").or(&["img-size"]),
        Flag::value("center-crop", "data.center_crop", "X").or(&["crop-pct"]),
        Flag::value("cache-mb", "data.cache_mb", "N"),
    ]),
    of_training("Augmentation").over(&[
        Flag::value("resized-crop", "data.resized_crop", "X"),
        Flag::value("rand-augment-ops", "data.rand_augment_ops", "N"),
        Flag::value("rand-augment-magnitude", "data.rand_augment_magnitude", "N").or(&["ra-magnitude"]),
        Flag::value("color-jitter", "data.color_jitter", "X"),
        Flag::value("hue-jitter", "data.hue_jitter", "X"),
        Flag::value("random-erasing", "data.random_erasing", "P").or(&["reprob", "random-erase"]),
        Flag::value("mixup", "data.mixup", "ALPHA").or(&["mixup-alpha"]),
        Flag::value("cutmix", "data.cutmix", "ALPHA").or(&["cutmix-alpha"]),
        Flag::value("repeated-augmentation", "data.repeated_augmentation", "N"),
    ]),
    of_both("Model").over(&[
        Flag::choice("stem", "model.stem"),
        Flag::value("depth", "model.depth", "N"),
        Flag::value("width", "model.width", "N"),
        Flag::value("groups", "model.groups", "N"),
        Flag::value("width-per-group", "model.width_per_group", "N"),
        Flag::choice("conv", "model.conv"),
    ]),
    of_training("Transfer learning").over(&[
        Flag::optional("pretrained", "model.pretrained", "WEIGHTS", "torchvision"),
        Flag::value("freeze", "model.freeze", "LAYERS"),
        Flag::value("backbone-lr-scale", "optim.backbone_lr_scale", "X"),
    ]),
    of_both("Parallel").over(&[
        Flag::value("world-size", "parallel.world_size", "N"),
        Flag::value("gpu-ids", "parallel.gpu_ids", "N,N").or(&["gpu"]),
        Flag::value("replicas-per-device", "parallel.replicas_per_device", "N,N"),
        Flag::value("stages", "parallel.stages", "N").or(&["pipeline-model-parallel-size"]),
        Flag::value("split-points", "parallel.split_points", "N,N"),
        Flag::value("batch-size", "parallel.batch_size", "N").or(&["per-device-train-batch-size"]),
        Flag::choice("backend", "parallel.backend"),
        Flag::choice("strategy", "parallel.strategy"),
        Flag::on("sync-bn", "parallel.sync_bn"),
        Flag::off("no-sync-bn", "parallel.sync_bn"),
        Flag::choice("reduce-precision", "parallel.reduce_precision"),
        Flag::on("shard-optimizer", "parallel.shard_optimizer").or(&["use-distributed-optimizer"]),
        Flag::on("grad-checkpointing", "parallel.grad_checkpointing").or(&["gradient-checkpointing"]),
        Flag::choice("cuda-graph", "parallel.cuda_graph"),
        Flag::on("cudnn", "parallel.cudnn"),
        Flag::value("check-every", "parallel.check_every", "STEPS"),
        Flag::on("roll-back", "parallel.roll_back"),
        Flag::value("timeout", "parallel.timeout", "SECONDS").or(&["dist-timeout"]),
    ]),
    of_training("Many machines").over(&[
        Flag::value("rank", "parallel.rank", "N").or(&["node-rank"]),
        Flag::value("nnodes", "parallel.nnodes", "N"),
        Flag::value("dist-url", "parallel.dist_url", "URL"),
        Flag::choice("dist-backend", "parallel.dist_backend"),
        Flag::value("link", "parallel.link", "MBITS"),
        Flag::value("dist-interface", "parallel.dist_interface", "NAME"),
        Flag::value("job-id", "parallel.job_id", "NAME"),
        Flag::value("job-secret-file", "parallel.job_secret_file", "FILE"),
        Flag::on("insecure", "parallel.insecure"),
        Flag::on("requeue", "run.requeue"),
    ]),
    of_training("Elastic").over(&[
        Flag::optional("elastic", "parallel.elastic", "MIN:MAX", "1:"),
        Flag::value("elastic-timeout", "parallel.elastic_timeout", "SECONDS"),
        Flag::value("heartbeat", "parallel.heartbeat", "SECONDS"),
        Flag::value("lost-after", "parallel.lost_after", "SECONDS"),
    ]),
    of_training("Optimizer").over(&[
        Flag::choice("optimizer", "optim.optimizer"),
        Flag::value("learning-rate", "optim.learning_rate", "X").or(&["lr"]),
        Flag::value("momentum", "optim.momentum", "X"),
        Flag::on("nesterov", "optim.nesterov"),
        Flag::value("weight-decay", "optim.weight_decay", "X").or(&["wd"]),
        Flag::value("label-smoothing", "optim.label_smoothing", "X").or(&["smoothing"]),
        Flag::off("no-decay-norm-bias", "optim.decay_norm_bias"),
        Flag::value("clip-grad-norm", "optim.clip_grad_norm", "X").or(&["max-grad-norm"]),
        Flag::value("clip-grad-value", "optim.clip_grad_value", "X"),
        Flag::value("ema-decay", "optim.ema_decay", "X"),
    ]),
    of_training("Schedule").over(&[
        Flag::choice("schedule", "schedule.kind"),
        Flag::value("warmup-epochs", "schedule.warmup_epochs", "X"),
        Flag::choice("lr-scaling", "schedule.lr_scaling"),
    ]),
    of_training("Checkpoints").over(&[
        Flag::value("checkpoint-every", "checkpoint.every", "INTERVAL"),
        Flag::value("keep-last", "checkpoint.keep_last", "N"),
        Flag::value("keep-best", "checkpoint.keep_best", "N").or(&["save-top-k", "checkpoint-hist"]),
        Flag::value("checkpoint", "checkpoint.path", "PATH"),
        Flag::value("checkpoint-url", "checkpoint.url", "URL"),
        Flag::optional("resume", "checkpoint.resume", "FROM", "latest"),
        Flag::on("force-config", "checkpoint.force_config"),
    ]),
    of_both("Run").over(&[
        Flag::value("output-dir", "run.output_dir", "DIR").or(&["output", "model-dir"]),
        Flag::choice("precision", "run.precision"),
        Flag::on("deterministic", "run.deterministic"),
        Flag::value("threads", "run.threads", "N"),
        Flag::value("limit-val-batches", "run.limit_val_batches", "N"),
        Flag::choice("progress", "run.progress"),
        Flag::value("log-every", "run.log_every", "N").or(&["print-freq", "log-interval", "logging-steps"]),
        Flag::on("profile", "run.profile"),
        Flag::on("tensorboard", "run.tensorboard"),
    ]),
];

pub fn all() -> impl Iterator<Item = &'static Flag> {
    HEADINGS.iter().flat_map(|heading| heading.flags)
}

/// The flag that is called `long`, or has that as an alias.
pub fn find(long: &str) -> Option<&'static Flag> {
    all().find(|flag| flag.long == long || flag.aliases.contains(&long))
}

/// The flag that takes a value for `key`, or turns it on.
pub fn of_key(key: &str) -> Option<&'static Flag> {
    all().find(|flag| flag.key == key)
}

/// The command-line argument that sets `key` to `value`: its flag if there is one, else `KEY=VALUE`.
pub fn setting(key: &str, value: &str) -> String {
    let spelled = |flag: &Flag| match flag.takes {
        Takes::Nothing(on) => (on.to_string() == value).then(|| format!("--{}", flag.long)),
        _ => Some(format!("--{} {value}", flag.long)),
    };
    all().filter(|flag| flag.key == key).find_map(spelled).unwrap_or_else(|| format!("{key}={value}"))
}

/// The name of `key` in messages: `learning rate` for `optim.learning_rate`.
pub fn noun(key: &str) -> String {
    match of_key(key) {
        Some(flag) => flag.long.replace('-', " "),
        None => key.rsplit('.').next().unwrap_or(key).replace('_', " "),
    }
}
