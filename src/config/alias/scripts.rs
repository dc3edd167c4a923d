//! Flags of PyTorch's and torchvision's scripts, timm, Hugging Face and TensorFlow that need a translation.
//!
//! If two flags set the same key, the later one in this table wins.

use super::Means::{Choice, Nothing, Read, Sets};
use super::placement::devices_per_machine;
use super::{AMP_LEVEL, Alias, BF16, COUNT, F16, F32, LOADERS, LOGGER, LOGS, Line, pairs};

// Behind the dot timm writes a tag of weights.
pub(super) const RESNET: super::Means = Choice(
    &[
        ("resnet18.", "model.stem=imagenet model.depth=18"),
        ("resnet34.", "model.stem=imagenet model.depth=34"),
        ("resnet50.", "model.stem=imagenet model.depth=50 model.groups=1 model.width_per_group=64"),
        ("resnet101.", "model.stem=imagenet model.depth=101 model.groups=1 model.width_per_group=64"),
        ("resnet152.", "model.stem=imagenet model.depth=152 model.groups=1 model.width_per_group=64"),
        ("wide_resnet50_2.", "model.stem=imagenet model.depth=50 model.groups=1 model.width_per_group=128"),
        ("wide_resnet101_2.", "model.stem=imagenet model.depth=101 model.groups=1 model.width_per_group=128"),
        ("resnext50_32x4d.", "model.stem=imagenet model.depth=50 model.groups=32 model.width_per_group=4"),
        ("resnext101_32x8d.", "model.stem=imagenet model.depth=101 model.groups=32 model.width_per_group=8"),
        ("resnext101_64x4d.", "model.stem=imagenet model.depth=101 model.groups=64 model.width_per_group=4"),
    ],
    "Kiln trains these networks only; for small images use --stem cifar",
);
/// What Kiln does anyway: the backend chooses layouts and kernels, the loader prefetches, an index of the files is
/// kept.
pub(super) const ALWAYS: super::Means = Sets("");

const TYPE: &str = "use --precision f32, bf16 or f16";
const SCHEDULE: &str = "'train --help' lists the choices of --schedule";

// timm counts the epochs of a schedule from the start of the run, torchvision from the end of the warm-up; both change
// the rate between epochs.
pub(super) const FLAGS: &[Alias] = &[
    Alias::switch("--amp", Read(amp)),
    Alias::switch("--fp16 --use-amp --native-amp --apex-amp", Sets(F16)),
    Alias::word("--opt-level", AMP_LEVEL),
    Alias::switch("--bf16", Sets(BF16)),
    Alias::word("--amp-dtype", Read(amp)),
    Alias::choice("--mixed-precision", TYPE).of(&[("no", F32), ("fp16", F16), ("bf16", BF16)]),
    Alias::choice("--dtype", TYPE).of(&[("fp32", F32), ("fp16", F16), ("bf16", BF16)]),
    Alias::choice(
        "--opt",
        "use --optimizer sgd --nesterov for timm's sgd, --optimizer sgd for torchvision's; rmsprop needs --as timm or \
         --as torchvision",
    )
    .of(&[
        ("momentum", "optim.optimizer=sgd"),
        ("nesterov sgd_nesterov", "optim.optimizer=sgd optim.nesterov=true"),
        ("adam", "optim.optimizer=adam"),
        ("adamw", "optim.optimizer=adamw"),
        ("nadamw", "optim.optimizer=nadamw"),
        ("lars", "optim.optimizer=lars"),
        // timm's Lamb clips by itself.
        ("lamb", "optim.optimizer=lamb optim.eps=1e-6 optim.clip_grad_norm=1.0"),
    ]),
    Alias::word("--clip-grad", Read(clip)),
    Alias::only("--clip-mode", "norm value", "use --clip-grad-norm or --clip-grad-value"),
    Alias::switch("--model-ema", Sets("optim.ema_decay=0.9998")),
    Alias::key("--model-ema-decay", "optim.ema_decay"),
    Alias::key("--model-ema-steps", "optim.ema_every"),
    Alias::key("--norm-weight-decay", "optim.norm_weight_decay"),
    Alias::key("--bias-weight-decay", "optim.bias_weight_decay"),
    Alias::switch(
        "--ra-sampler",
        Read(|_, line| Ok(vec![("data.repeated_augmentation", line.value("--ra-reps").unwrap_or("3").into())])),
    ),
    Alias::word("--ra-reps", COUNT),
    Alias::choice("--sched", SCHEDULE).of(&[
        ("cosine", "schedule.kind=cosine schedule.counted_from=start schedule.interval=epoch"),
        ("step", "schedule.kind=step schedule.step_epochs=90 schedule.counted_from=start schedule.interval=epoch"),
        (
            "multistep",
            "schedule.kind=step schedule.milestones=89,179,269 schedule.counted_from=start schedule.interval=epoch",
        ),
        ("poly", "schedule.kind=poly schedule.counted_from=start schedule.interval=epoch"),
        ("plateau", "schedule.kind=plateau schedule.interval=epoch"),
        ("none", "schedule.kind=constant schedule.warmup_epochs=0"),
    ]),
    Alias::key("--decay-epochs", "schedule.step_epochs"),
    Alias::word("--decay-milestones", Read(milestones)),
    Alias::switch("--sched-on-updates", Sets("schedule.interval=step")),
    // Before the scheduler, because 'exponentiallr' does not read it.
    Alias::word("--lr-step-size", Read(|value, line| Ok(of_steps("schedule.step_epochs", value, line)))),
    Alias::choice("--lr-scheduler", SCHEDULE).of(&[
        ("cosineannealinglr", "schedule.kind=cosine schedule.counted_from=warmup schedule.interval=epoch"),
        ("steplr", "schedule.kind=step schedule.counted_from=warmup schedule.interval=epoch"),
        (
            "exponentiallr",
            "schedule.kind=step schedule.step_epochs=1 schedule.counted_from=warmup schedule.interval=epoch",
        ),
    ]),
    Alias::key("--decay-rate --dr", "schedule.gamma"),
    Alias::word("--lr-gamma", Read(|value, line| Ok(of_steps("schedule.gamma", value, line)))),
    Alias::key("--min-lr --lr-min", "schedule.final_lr"),
    Alias::word("--lr-warmup-epochs", Read(|value, _| Ok(warm_up(value)))),
    Alias::key("--lr-warmup-method", "schedule.warmup_shape"),
    Alias::word("--lr-warmup-decay", Read(|value, _| warmup_decay(value))),
    Alias::key("--warmup-lr", "schedule.warmup_lr"),
    Alias::switch("--no-aug", Sets("data.augment=false")),
    Alias::key("--mixup-prob", "data.mix_prob"),
    Alias::choice("--auto-augment", "use --rand-augment-ops 2 --rand-augment-magnitude 9").of(&[
        ("ra", "data.rand_augment_ops=2 data.rand_augment_magnitude=9"),
        ("ta_wide", "data.auto_augment=ta_wide"),
        ("imagenet", "data.auto_augment=imagenet"),
        ("cifar10", "data.auto_augment=cifar10"),
        ("augmix", "data.auto_augment=augmix"),
    ]),
    Alias::word("--augmix-severity", Read(severity)),
    Alias::key("--aa", "data.auto_augment"),
    Alias::key("--interpolation", "data.interpolation"),
    Alias::choice("--dataset", "for a directory of images use --data folder --data-dir DIR").of(&[
        ("cifar10 torch/cifar10", "data.source=cifar10"),
        ("cifar100 torch/cifar100", "data.source=cifar100"),
        ("folder imagefolder imagenet imagenette torch/folder torch/image_folder", "data.source=folder"),
    ]),
    Alias::switch("--dataset-download", Sets("data.download=true")),
    Alias::switch("--use-synthetic-data --dummy", Sets("data.source=synthetic")),
    Alias::key("--num-classes", "model.num_classes"),
    Alias::word("--weights", Read(weights)),
    Alias::word("--arch --model --model-name", RESNET),
    Alias::choice("--hflip", "half of the images are flipped, or none; use data.flip=true or data.flip=false")
        .of(&[("0 0.0", "data.flip=false"), ("0.5", "data.flip=true")]),
    Alias::word("--input-size", Read(input_size)),
    Alias::word("--cooldown-epochs", Read(cooldown)),
    Alias::word("--save-every", Read(|value, _| Ok(vec![("checkpoint.every", format!("{value}epochs"))]))),
    Alias::word("--log-dir", Nothing("logs are in the run's directory; use --output-dir DIR and --tensorboard")),
    Alias::switch("--no-cuda", Sets("parallel.backend=flex")),
    Alias::word("--logger", LOGGER),
    Alias::switch("--wandb", Nothing(LOGS)),
    Alias::choice("--device", "use --gpu-ids")
        .of(&[("cpu", "parallel.backend=flex"), ("cuda", "parallel.backend=cuda")]),
    Alias::word("--num-gpus", Read(devices_per_machine)),
    Alias::choice("--distribution-strategy", "there is no parameter server; use --strategy ddp").of(&[
        ("off one_device", "parallel.strategy=single"),
        ("mirrored multi_worker_mirrored", "parallel.strategy=ddp"),
        ("onedevicestrategy", "parallel.strategy=single"),
        ("mirroredstrategy multiworkermirroredstrategy", "parallel.strategy=ddp"),
    ]),
    Alias::word("--ckpt-path", super::lightning::CHECKPOINT),
    Alias::only("--start-epoch", "0", "remove it: --resume continues at the exact image of its checkpoint"),
    // Instead of training, the command line makes the command evaluate of them.
    Alias::switch("--evaluate --test-only", Nothing("use 'train evaluate --checkpoint PATH'")),
    Alias::switch("--multirun", Nothing("use 'train sweep KEY=VALUE,VALUE'")),
    Alias::word("--workers --num-workers --dataloader-num-workers", LOADERS),
    Alias::switch(
        "--pin-mem --pin-memory --persistent-workers --no-prefetcher --use-multi-epochs-loader --cache-dataset \
         --channels-last --torchcompile",
        ALWAYS,
    ),
    Alias::switch("--use-deterministic-algorithms", Sets("run.deterministic=true")),
];

/// More epochs at the end of a cyclic schedule; timm's others do not read it.
fn cooldown(value: &str, line: &Line) -> super::Read {
    if value == "0" || matches!(line.value("--sched"), Some("step" | "multistep" | "plateau")) {
        return Ok(Vec::new());
    }
    Err(("0", "a schedule ends with the last epoch; raise --epochs, and set schedule.final_lr".into()))
}

/// timm drops the rate one epoch before each.
fn milestones(value: &str, line: &Line) -> super::Read {
    if line.value("--sched").is_some_and(|kind| kind != "multistep") {
        return Ok(Vec::new());
    }
    let epochs: Option<Vec<u32>> =
        value.split([',', ' ']).map(|epoch| epoch.parse::<u32>().ok()?.checked_sub(1)).collect();
    let list = |epochs: Vec<u32>| epochs.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    match epochs {
        Some(epochs) => Ok(vec![("schedule.milestones", list(epochs))]),
        None => Err(("epochs from 1, as in 30 60 80", "use schedule.milestones=30,60,80".into())),
    }
}

/// With torchvision's defaults, which `--lr-warmup-method` and `--lr-warmup-decay` change.
fn warm_up(epochs: &str) -> Vec<(&'static str, String)> {
    let method = pairs("schedule.warmup_start=0.01 schedule.warmup_shape=constant schedule.interval=epoch");
    method.chain([("schedule.warmup_epochs", epochs.into())]).collect()
}

/// A key of the step schedule, which is torchvision's unless `--lr-scheduler` names another one.
fn of_steps(key: &'static str, value: &str, line: &Line) -> Vec<(&'static str, String)> {
    let schedule = match line.value("--lr-scheduler") {
        Some(_) => "",
        None => "schedule.kind=step schedule.counted_from=warmup schedule.interval=epoch",
    };
    pairs(schedule).chain([(key, value.into())]).collect()
}

/// Kiln's own 0 means the rate of one replica.
fn warmup_decay(value: &str) -> super::Read {
    if value.trim().parse() == Ok(0.0) {
        return Err(("a fraction above 0", "0.01 is torchvision's default".into()));
    }
    Ok(vec![("schedule.warmup_start", value.into())])
}

/// `--amp`, in the type of `--amp-dtype`.
fn amp(_: &str, line: &Line) -> super::Read {
    match line.value("--amp-dtype") {
        None | Some("float16" | "fp16" | "f16") => Ok(pairs(F16).collect()),
        Some("bfloat16" | "bf16") => Ok(pairs(BF16).collect()),
        Some(_) => Err(("float16 or bfloat16", TYPE.into())),
    }
}

fn clip(value: &str, line: &Line) -> super::Read {
    let by_value = line.value("--clip-mode") == Some("value");
    Ok(vec![(if by_value { "optim.clip_grad_value" } else { "optim.clip_grad_norm" }, value.into())])
}

/// A member of torchvision's enumerations of weights.
pub(super) fn weights(value: &str, line: &Line) -> super::Read {
    let network = value.split('_').next().unwrap_or_default().to_lowercase();
    let arch = ["--arch", "--model", "model.arch"].into_iter().find_map(|name| line.value(name));
    if arch.is_some_and(|arch| arch.split('_').next() != Some(&network) && network.starts_with("resne")) {
        return Err(("those of the network", "give both the same name".into()));
    }
    let of = if value == "DEFAULT" { arch.unwrap_or_default() } else { &network };
    let is_shallow = ["resnet18", "resnet34"].contains(&of);
    if value.ends_with("IMAGENET1K_V1") || (is_shallow && value.ends_with("DEFAULT")) {
        return Ok(vec![("model.pretrained", "torchvision".into())]);
    }
    const REMEDY: &str = "download other weights, and use --pretrained FILE.pth";
    Err(("weights of a ResNet called IMAGENET1K_V1", REMEDY.into()))
}

/// Channels, height and width, of square images in colour.
fn input_size(value: &str, _: &Line) -> super::Read {
    let sizes: Vec<&str> = value.split([',', ' ']).collect();
    match sizes[..] {
        ["3", height, width] if height == width => Ok(vec![("data.image_size", height.into())]),
        _ => Err(("3 and the same side twice, as in 3 224 224", "use --image-size 224".into())),
    }
}

/// Of AugMix, if that is what `--auto-augment` selects.
fn severity(value: &str, line: &Line) -> super::Read {
    match (line.value("--auto-augment"), value.parse::<u32>()) {
        (Some("augmix"), Ok(severity)) => Ok(vec![("data.auto_augment", format!("augmix-s{severity}"))]),
        (_, Ok(_)) => Ok(Vec::new()),
        _ => Err(("a whole number, 1 to 10", "use data.auto_augment=augmix-s3".into())),
    }
}
