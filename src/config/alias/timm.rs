//! Flags of timm's training script that are not in `scripts.rs`: what has no influence here, and what Kiln has instead.

use super::Means::{Choice, Nothing, Read, Sets};
use super::scripts::ALWAYS;
use super::{Alias, LOGS, Line};

const BATCH_NORM: &str = "batch-norm has PyTorch's momentum 0.1 and eps 1e-5";
const NO_NOISE: &str = "a schedule has no noise; remove it";
const OFF: &str = "use --drop-path P, stochastic depth";
const JSD: super::Means = Sets(&[("optim.loss", "jsd")]);
const SIZES: super::Means = Nothing("training has one --image-size N; remove it");
/// How another program computes the same, or what has an effect only with an option that is refused.
const ANY: super::Means = Read(|_, _| Ok(Vec::new()));

pub(super) const FLAGS: &[Alias] = &[
    // Images.
    Alias::word("--train-split", Choice(&[("train", &[])], "the split is DIR/train; name the directory train")),
    Alias::word(
        "--val-split",
        Choice(&[("val", &[]), ("validation", &[])], "the split is DIR/val or DIR/validation; name it so"),
    ),
    Alias::word("--class-map", Choice(&[("", &[])], "classes are the folders, or the file that 'train pack' reads")),
    Alias::word("--input-img-mode", Choice(&[("rgb", &[])], "images have three colours; remove it")),
    Alias::word("--in-chans", Choice(&[("3", &[])], "images have three colours; remove it")),
    Alias::word("--scale", Read(|value, _| scale(value))),
    Alias::word("--ratio", Read(ratio)),
    Alias::word("--mean", Read(|_, line| normalization(line))),
    Alias::word("--std", Read(|_, line| normalization(line))),
    Alias::word("--train-crop-mode", Choice(&[("rrc", &[])], "use --resized-crop X")),
    Alias::word(
        "--vflip",
        Choice(&[("0", &[]), ("0.0", &[])], "images are mirrored from left to right only; remove it"),
    ),
    Alias::word(
        "--color-jitter-prob",
        Choice(&[("1", &[]), ("1.0", &[])], "--color-jitter varies every image; remove it"),
    ),
    Alias::word("--grayscale-prob", Choice(&[("0", &[]), ("0.0", &[])], "it is not offered; use --color-jitter X")),
    Alias::word(
        "--gaussian-blur-prob",
        Choice(&[("0", &[]), ("0.0", &[])], "it is not offered; use --rand-augment-ops N"),
    ),
    Alias::word(
        "--train-interpolation",
        Choice(
            &[
                ("random", &[]),
                ("bilinear", &[("data.interpolation", "bilinear")]),
                ("bicubic", &[("data.interpolation", "bicubic")]),
            ],
            "use data.interpolation=bilinear or bicubic",
        ),
    ),
    Alias::word(
        "--remode",
        Choice(
            &[
                ("const", &[("data.erasing_fill", "mean")]),
                ("rand", &[("data.erasing_fill", "rand")]),
                ("pixel", &[("data.erasing_fill", "pixel")]),
            ],
            "use data.erasing_fill=mean, rand or pixel",
        ),
    ),
    Alias::key("--recount", "data.erasing_count"),
    Alias::word("--aug-repeats", Read(|value, _| repeats(value))),
    Alias::switch("--resplit", Sets(&[("data.erase_first_view", "false")])),
    Alias::word("--aug-splits", Read(|value, _| splits(value))),
    Alias::word("--epoch-repeats", Choice(&[("0", &[]), ("0.0", &[])], "use more --epochs")),
    Alias::word(
        "--mixup-switch-prob",
        Choice(&[("0.5", &[])], "with both, mixup and cutmix take half of the batches each"),
    ),
    Alias::word("--mixup-mode", Choice(&[("batch", &[])], "a batch has one mixing; remove it")),
    Alias::word("--mixup-off-epoch", Choice(&[("0", &[])], "mixing goes on until the end; remove it")),
    Alias::word("--cutmix-minmax", Nothing("use --cutmix ALPHA")),
    Alias::word("--tta", Choice(&[("0", &[])], "an image is evaluated once; remove it")),
    Alias::word("--validation-batch-size", Read(super::count)),
    Alias::word("--worker-seeding", Choice(&[("all", &[]), ("part", &[])], "--seed N decides; remove it")),
    Alias::word("--train-num-samples", Nothing("use --limit-train-batches N")),
    Alias::word("--val-num-samples", Nothing("use --limit-val-batches N")),
    Alias::word("--input-key", Nothing("use data.image_column=NAME for Parquet files")),
    Alias::word("--target-key", Nothing("use data.label_column=NAME for Parquet files")),
    Alias::switch("--dataset-trust-remote-code", Nothing("data sets are read from files; use --data-dir DIR")),
    Alias::word("--train-img-sizes", SIZES),
    Alias::word("--train-batch-sizes", SIZES),
    Alias::word("--train-size-probs", SIZES),
    Alias::word("--train-size-schedule", Choice(&[("constant", &[])], "training has one --image-size N; remove it")),
    Alias::word("--train-batches-per-epoch", Nothing("use --limit-train-batches N")),
    Alias::switch("--naflex-loader", SIZES),
    // Model.
    Alias::key("--initial-checkpoint", "model.pretrained"),
    Alias::key("--pretrained-path", "model.pretrained"),
    Alias::word("--gp", Choice(&[("avg", &[])], "the network ends with the mean of each channel; remove it")),
    Alias::word("--drop", Choice(&[("0", &[]), ("0.0", &[])], OFF)),
    Alias::key("--drop-path", "model.drop_path"),
    Alias::word("--drop-connect", Choice(&[("0", &[]), ("0.0", &[])], OFF)),
    Alias::word("--drop-block", Choice(&[("0", &[]), ("0.0", &[])], OFF)),
    Alias::word("--bn-momentum", Choice(&[("0.1", &[])], BATCH_NORM)),
    Alias::word("--bn-eps", Choice(&[("1e-5", &[]), ("1e-05", &[])], BATCH_NORM)),
    Alias::word(
        "--dist-bn",
        Choice(
            &[
                ("reduce", &[("parallel.bn_statistics", "mean")]),
                ("broadcast", &[("parallel.bn_statistics", "first")]),
                ("", &[("parallel.bn_statistics", "first")]),
            ],
            "use parallel.bn_statistics=mean or first",
        ),
    ),
    Alias::switch(
        "--split-bn",
        Read(|_, line| Ok(vec![("model.bn_parts", line.value("--aug-splits").unwrap_or("2").into())])),
    ),
    Alias::word("--model-kwargs", Nothing("use --width N and --groups N")),
    Alias::word("--head-init-scale", Nothing("the classifier starts as PyTorch's; remove it")),
    Alias::word("--head-init-bias", Nothing("the classifier starts as PyTorch's; remove it")),
    Alias::word("--model-dtype", Choice(&[("float32", &[])], "weights are always f32; use --precision bf16 or f16")),
    Alias::word("--kd-distill-type", ANY),
    Alias::word("--kd-loss-type", ANY),
    Alias::word("--kd-temperature", ANY),
    Alias::word("--kd-token-distill-type", ANY),
    Alias::word("--naflex-loss-scale", ANY),
    Alias::word("--naflex-max-seq-len", ANY),
    Alias::word("--naflex-train-seq-lens", ANY),
    Alias::word("--train-size-random-mix", ANY),
    Alias::word("--train-size-schedule-spread", ANY),
    Alias::word("--variable-batch-loss-scale", ANY),
    Alias::word("--kd-model-name", Nothing("models are trained on labels, not by a teacher; use --pretrained WEIGHTS")),
    // Optimizer, schedule and loss.
    Alias::key("--opt-eps", "optim.eps"),
    Alias::word("--opt-betas", Read(betas)),
    Alias::word("--opt-kwargs", Nothing("use --momentum X, optim.beta1=X, optim.beta2=X or optim.eps=X")),
    Alias::word("--layer-decay", Nothing("use --backbone-lr-scale X")),
    Alias::word("--layer-decay-min-scale", ANY),
    Alias::word("--layer-decay-no-opt-scale", Nothing("use --freeze LAYERS")),
    Alias::word("--lr-base-size", Choice(&[("256", &[])], "multiply --lr-base by 256 / N")),
    Alias::word("--lr-noise", Nothing(NO_NOISE)),
    Alias::word("--lr-noise-pct", Choice(&[("0.67", &[])], "a schedule has no noise; remove it")),
    Alias::word("--lr-noise-std", Choice(&[("1", &[]), ("1.0", &[])], "a schedule has no noise; remove it")),
    Alias::word(
        "--lr-cycle-mul",
        Choice(&[("1", &[]), ("1.0", &[])], "use --schedule restarts schedule.restart_factor=N"),
    ),
    Alias::word("--lr-cycle-decay", Choice(&[("1", &[]), ("1.0", &[]), ("0.5", &[])], "use --schedule restarts")),
    Alias::word("--lr-cycle-limit", Choice(&[("1", &[])], "use --schedule restarts schedule.restart_epochs=N")),
    Alias::word("--lr-k-decay", Choice(&[("1", &[]), ("1.0", &[])], "use --schedule poly schedule.gamma=X")),
    Alias::key("--patience-epochs", "schedule.patience_epochs"),
    Alias::switch("--warmup-prefix", Nothing("use --epochs N with the warm-up's, and schedule.counted_from=warmup")),
    Alias::switch("--bce-loss", Sets(&[("optim.loss", "bce")])),
    Alias::key("--bce-target-thresh", "optim.bce_threshold"),
    Alias::switch("--bce-sum", Nothing("optim.loss=bce is the mean over classes; multiply --lr by their number")),
    Alias::word("--bce-pos-weight", Nothing("optim.loss=bce weighs all classes alike; remove it")),
    Alias::switch("--jsd-loss", JSD),
    Alias::switch("--jsd", JSD),
    Alias::switch("--model-ema-warmup", Nothing("use optim.ema_after_warmup=true")),
    // The run.
    Alias::word("--eval-metric", Choice(&[("top1", &[])], "the best checkpoint is the one with the best accuracy")),
    Alias::word("--recovery-interval", Read(|value, _| recovery(value))),
    Alias::word(
        "--val-interval",
        Choice(&[("1", &[])], "every epoch is validated; --limit-val-batches N shortens that"),
    ),
    Alias::switch("--no-resume-opt", Nothing("--resume continues exactly; for weights alone use --pretrained PATH")),
    Alias::switch("--log-wandb", Nothing(LOGS)),
    Alias::word("--wandb-project", Nothing(LOGS)),
    Alias::word("--wandb-tags", Nothing(LOGS)),
    Alias::word("--wandb-resume-id", Nothing(LOGS)),
    Alias::switch("--save-images", Nothing("'train predict' shows what a model sees; remove it")),
    Alias::switch("--torchscript", ALWAYS),
    Alias::word("--torchcompile-mode", ANY),
    Alias::word("--device-modules", Nothing("backends are chosen when building; use --backend")),
    Alias::word("--fuser", ANY),
    Alias::switch("--fast-norm", ALWAYS),
    Alias::switch("--synchronize-step", ALWAYS),
    Alias::switch("--no-ddp-bb", ALWAYS),
    Alias::switch("--model-ema-force-cpu", ALWAYS),
];

fn numbers(value: &str) -> Option<Vec<f64>> {
    value.split([',', ' ']).filter(|part| !part.is_empty()).map(|part| part.parse().ok()).collect()
}

/// Views of an image, as a fraction in timm; 0 and 1 mean one.
fn repeats(value: &str) -> super::Read {
    match value.trim_end_matches(".0").parse::<u32>() {
        Ok(views) => Ok(vec![("data.repeated_augmentation", views.max(1).to_string())]),
        Err(_) => Err(("a whole number", "use --repeated-augmentation N".into())),
    }
}

/// Views of an image in a step; 0 means one.
fn splits(value: &str) -> super::Read {
    match value.parse::<u32>() {
        Ok(views) if views != 1 => Ok(vec![("data.views", views.max(1).to_string())]),
        _ => Err(("0, or at least 2", "one view is --aug-splits 0".into())),
    }
}

/// Smallest and largest share of the area in a random part.
fn scale(value: &str) -> super::Read {
    match numbers(value).as_deref() {
        Some([least, 1.0]) => Ok(vec![("data.resized_crop", least.to_string())]),
        _ => Err(("two shares, the second 1, as in 0.08 1.0", "use --resized-crop 0.08".into())),
    }
}

fn ratio(value: &str, _: &Line) -> super::Read {
    let is_usual = |found: f64, usual: f64| (found - usual).abs() < 0.01;
    match numbers(value).as_deref() {
        Some([least, most]) if is_usual(*least, 0.75) && is_usual(*most, 4.0 / 3.0) => Ok(Vec::new()),
        _ => Err(("0.75 1.3333, which is what --resized-crop has", "remove it".into())),
    }
}

fn normalization(line: &Line) -> super::Read {
    const BOTH: &str = "use data.normalization=0.485,0.456,0.406/0.229,0.224,0.225";
    let [mean, std] = ["--mean", "--std"].map(|name| line.value(name).and_then(numbers));
    let joined = |numbers: Vec<f64>| numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
    match (mean, std) {
        (Some(mean), Some(std)) if mean.len() == 3 && std.len() == 3 => {
            Ok(vec![("data.normalization", format!("{}/{}", joined(mean), joined(std)))])
        }
        _ => Err(("three numbers, with those of the other of --mean and --std", BOTH.into())),
    }
}

fn betas(value: &str, _: &Line) -> super::Read {
    match numbers(value).as_deref() {
        Some([first, second]) => Ok(vec![("optim.beta1", first.to_string()), ("optim.beta2", second.to_string())]),
        _ => Err(("two numbers, as in 0.9 0.999", "use optim.beta1=0.9 optim.beta2=0.999".into())),
    }
}

/// Steps between two checkpoints inside an epoch; 0 means none.
fn recovery(value: &str) -> super::Read {
    match value.parse::<u32>() {
        Ok(0) => Ok(Vec::new()),
        Ok(steps) => Ok(vec![("checkpoint.every", format!("{steps}steps"))]),
        Err(_) => Err(("a number of batches", "use --checkpoint-every 500steps".into())),
    }
}
