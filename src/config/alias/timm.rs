//! Flags of timm's training script that are not in `scripts.rs`: what has no influence here, and what Kiln has instead.

use super::Means::{Nothing, Read, Sets};
use super::scripts::ALWAYS;
use super::{Alias, COUNT, LOGS, Line};

const BATCH_NORM: &str = "batch-norm has PyTorch's momentum 0.1 and eps 1e-5";
const NO_NOISE: &str = "a schedule has no noise; remove it";
const SIZES: super::Means = Nothing("training has one --image-size N; remove it");
/// How another program computes the same, or what has an effect only with an option that is refused.
const ANY: super::Means = Read(|_, _| Ok(Vec::new()));

pub(super) const FLAGS: &[Alias] = &[
    // Images.
    Alias::only("--train-split", "train", "the split is DIR/train; name the directory train"),
    Alias::only("--val-split", "val validation", "the split is DIR/val or DIR/validation; name it so"),
    Alias::only("--class-map", "", "classes are the folders, or the file that 'train pack' reads"),
    Alias::only("--input-img-mode", "rgb", "images have three colours; remove it"),
    Alias::only("--in-chans", "3", "images have three colours; remove it"),
    Alias::word("--scale", Read(|value, _| scale(value))),
    Alias::word("--ratio", Read(ratio)),
    Alias::word("--mean --std", Read(|_, line| normalization(line))),
    Alias::only("--train-crop-mode", "rrc", "use --resized-crop X"),
    Alias::only("--vflip", "0 0.0", "images are mirrored from left to right only; remove it"),
    Alias::only("--color-jitter-prob", "1 1.0", "--color-jitter varies every image; remove it"),
    Alias::only("--grayscale-prob", "0 0.0", "it is not offered; use --color-jitter X"),
    Alias::only("--gaussian-blur-prob", "0 0.0", "it is not offered; use --rand-augment-ops N"),
    Alias::key("--train-interpolation", "data.train_interpolation"),
    Alias::choice("--remode", "use data.erasing_fill=mean, rand or pixel").of(&[
        ("const", "data.erasing_fill=mean"),
        ("rand", "data.erasing_fill=rand"),
        ("pixel", "data.erasing_fill=pixel"),
    ]),
    Alias::key("--recount", "data.erasing_count"),
    Alias::word("--aug-repeats", Read(|value, _| repeats(value))),
    Alias::switch("--resplit", Sets("data.erase_first_view=false")),
    Alias::word("--aug-splits", Read(|value, _| splits(value))),
    Alias::only("--epoch-repeats", "0 0.0", "use more --epochs"),
    Alias::only("--mixup-switch-prob", "0.5", "with both, mixup and cutmix take half of the batches each"),
    Alias::only("--mixup-mode", "batch", "a batch has one mixing; remove it"),
    Alias::only("--mixup-off-epoch", "0", "mixing goes on until the end; remove it"),
    Alias::word("--cutmix-minmax", Nothing("use --cutmix ALPHA")),
    Alias::only("--tta", "0", "an image is evaluated once; remove it"),
    Alias::word("--validation-batch-size", COUNT),
    Alias::only("--worker-seeding", "all part", "--seed N decides; remove it"),
    Alias::word("--train-num-samples", Nothing("use --limit-train-batches N")),
    Alias::word("--val-num-samples", Nothing("use --limit-val-batches N")),
    Alias::word("--input-key", Nothing("use data.image_column=NAME for Parquet files")),
    Alias::word("--target-key", Nothing("use data.label_column=NAME for Parquet files")),
    Alias::switch("--dataset-trust-remote-code", Nothing("data sets are read from files; use --data-dir DIR")),
    Alias::word("--train-img-sizes --train-batch-sizes --train-size-probs", SIZES),
    Alias::only("--train-size-schedule", "constant", "training has one --image-size N; remove it"),
    Alias::word("--train-batches-per-epoch", Nothing("use --limit-train-batches N")),
    Alias::switch("--naflex-loader", SIZES),
    // Model.
    Alias::key("--initial-checkpoint --pretrained-path", "model.pretrained"),
    Alias::only("--gp", "avg", "the network ends with the mean of each channel; remove it"),
    Alias::key("--drop-path", "model.drop_path"),
    Alias::only("--drop --drop-connect --drop-block", "0 0.0", "use --drop-path P, stochastic depth"),
    Alias::only("--bn-momentum", "0.1", BATCH_NORM),
    Alias::only("--bn-eps", "1e-5 1e-05", BATCH_NORM),
    Alias::choice("--dist-bn", "use parallel.bn_statistics=mean or first").of(&[
        ("reduce", "parallel.bn_statistics=mean"),
        ("broadcast", "parallel.bn_statistics=first"),
        ("", "parallel.bn_statistics=first"),
    ]),
    Alias::switch(
        "--split-bn",
        Read(|_, line| Ok(vec![("model.bn_parts", line.value("--aug-splits").unwrap_or("2").into())])),
    ),
    Alias::word("--model-kwargs", Nothing("use --width N and --groups N")),
    Alias::word("--head-init-scale --head-init-bias", Nothing("the classifier starts as PyTorch's; remove it")),
    Alias::only("--model-dtype", "float32", "weights are always f32; use --precision bf16 or f16"),
    Alias::word(
        "--kd-distill-type --kd-loss-type --kd-temperature --kd-token-distill-type --naflex-loss-scale \
         --naflex-max-seq-len --naflex-train-seq-lens --train-size-random-mix --train-size-schedule-spread \
         --transformer-embedding-decay --variable-batch-loss-scale",
        ANY,
    ),
    Alias::word("--kd-model-name", Nothing("models are trained on labels, not by a teacher; use --pretrained WEIGHTS")),
    // Optimizer, schedule and loss.
    Alias::key("--opt-eps", "optim.eps"),
    Alias::word("--opt-betas", Read(betas)),
    Alias::word("--opt-kwargs", Nothing("use --momentum X, optim.beta1=X, optim.beta2=X or optim.eps=X")),
    Alias::word("--layer-decay", Nothing("use --backbone-lr-scale X")),
    Alias::word("--layer-decay-min-scale", ANY),
    Alias::word("--layer-decay-no-opt-scale", Nothing("use --freeze LAYERS")),
    Alias::only("--lr-base-size", "256", "multiply --lr-base by 256 / N"),
    Alias::word("--lr-noise", Nothing(NO_NOISE)),
    Alias::only("--lr-noise-pct", "0.67", NO_NOISE),
    Alias::only("--lr-noise-std", "1 1.0", NO_NOISE),
    Alias::only("--lr-cycle-mul", "1 1.0", "use --schedule restarts schedule.restart_factor=N"),
    Alias::only("--lr-cycle-decay", "1 1.0 0.5", "use --schedule restarts"),
    Alias::only("--lr-cycle-limit", "1", "use --schedule restarts schedule.restart_epochs=N"),
    Alias::only("--lr-k-decay", "1 1.0", "use --schedule poly schedule.gamma=X"),
    Alias::key("--patience-epochs", "schedule.patience_epochs"),
    Alias::switch("--warmup-prefix", Nothing("use --epochs N with the warm-up's, and schedule.counted_from=warmup")),
    Alias::switch("--bce-loss", Sets("optim.loss=bce")),
    Alias::key("--bce-target-thresh", "optim.bce_threshold"),
    Alias::switch("--bce-sum", Nothing("optim.loss=bce is the mean over classes; multiply --lr by their number")),
    Alias::word("--bce-pos-weight", Nothing("optim.loss=bce weighs all classes alike; remove it")),
    Alias::switch("--jsd-loss --jsd", Sets("optim.loss=jsd")),
    Alias::switch("--model-ema-warmup", Nothing("use optim.ema_after_warmup=true")),
    // The run.
    Alias::only("--eval-metric", "top1", "the best checkpoint is the one with the best accuracy"),
    Alias::word("--recovery-interval", Read(|value, _| recovery(value))),
    Alias::only("--val-interval", "1", "every epoch is validated; --limit-val-batches N shortens that"),
    Alias::switch("--no-resume-opt", Nothing("--resume continues exactly; for weights alone use --pretrained PATH")),
    Alias::switch("--log-wandb", Nothing(LOGS)),
    Alias::word("--wandb-project --wandb-tags --wandb-resume-id", Nothing(LOGS)),
    Alias::switch("--save-images", Nothing("'train predict' shows what a model sees; remove it")),
    Alias::word("--device-modules", Nothing("backends are chosen when building; use --backend")),
    Alias::word("--torchcompile-mode --fuser", ANY),
    Alias::switch("--torchscript --fast-norm --synchronize-step --no-ddp-bb --model-ema-force-cpu", ALWAYS),
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
