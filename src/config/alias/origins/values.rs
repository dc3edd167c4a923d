//! Reads values of words that an origin has.

use super::super::{Line, Read};
use crate::config::flag;

/// A power of two changes no number as long as nothing overflows.
pub(super) fn loss_scale(value: &str, _: &Line) -> Read {
    match value.parse::<f64>() {
        Ok(scale) if scale > 0.0 => Ok(Vec::new()),
        _ if value == "dynamic" => Ok(Vec::new()),
        _ => Err(("a positive number, or dynamic", "remove it: the loss scale of f16 adapts itself".into())),
    }
}

/// Options for the sides of training images, of the resized validation image, and of its central part; their defaults.
pub(super) type Sizes = [(&'static str, u32); 3];
pub(super) const SIZES: Sizes = [("--train-crop-size", 224), ("--val-resize-size", 256), ("--val-crop-size", 224)];
pub(super) const COMPOSER_SIZES: Sizes =
    [("--train-crop-size", 224), ("--eval-resize-size", 256), ("--eval-crop-size", 224)];

/// Sizes in pixels; the central part becomes a share of the resized image.
pub(super) fn sizes(line: &Line, options: Sizes) -> Read {
    let pixels = options.map(|(name, usual)| line.value(name).map_or(Some(usual), |text| text.parse().ok()));
    let [Some(train), Some(resized @ 1..=65535), Some(crop @ 1..)] = pixels else {
        return Err(("a number of pixels", "use --image-size N, data.val_image_size=N and --center-crop X".into()));
    };
    // The shortest share that gives back the size.
    let share = |digits: i32| {
        let scale = 10_f64.powi(digits);
        let share = (f64::from(crop) / f64::from(resized) * scale).floor() / scale;
        ((f64::from(crop) / share).floor() == f64::from(resized)).then_some(share)
    };
    let Some(share) = (1..9).find_map(share).filter(|_| crop <= resized) else {
        return Err(("at most the size of the resized image", "give both sizes for validation".into()));
    };
    let other = if crop == train { 0 } else { crop };
    let sizes = [("data.image_size", train.to_string()), ("data.val_image_size", other.to_string())];
    Ok(sizes.into_iter().chain([("data.center_crop", share.to_string())]).collect())
}

/// How torchvision's script decodes images, which changes little, or a backend of Kiln's.
pub(super) fn decoder(value: &str) -> Vec<(&'static str, String)> {
    if ["pil", "tensor"].contains(&value) { Vec::new() } else { vec![("parallel.backend", value.into())] }
}

/// Whether pretrained weights are used, or which; a file that another word names goes before.
pub(super) fn pretrained(value: &str, line: &Line) -> Vec<(&'static str, String)> {
    if ["--initial-checkpoint", "--pretrained-path"].iter().any(|name| line.value(name).is_some()) {
        return Vec::new();
    }
    let weights = match value.to_lowercase().as_str() {
        "true" => "torchvision",
        "false" => "",
        _ => value,
    };
    vec![("model.pretrained", weights.into())]
}

/// Where the run of timm's `--experiment` goes, if there is one.
pub(super) fn directory(line: &Line) -> Vec<(&'static str, String)> {
    let root = line.value("--output-dir");
    let directory = match line.value("--experiment").filter(|name| !name.is_empty()) {
        Some(name) => format!("{}/{name}", root.unwrap_or("output/train")),
        None => root.unwrap_or_default().into(),
    };
    vec![("run.output_dir", directory)]
}

/// A directory of one split, beside the other's.
pub(super) fn split(value: &str, line: &Line) -> Read {
    let parts = |value: &str| {
        let (root, name) = value.trim_end_matches('/').rsplit_once('/').unwrap_or((".", value.trim_end_matches('/')));
        let is_split = ["train", "training", "val", "valid", "validation", "test"].contains(&name);
        is_split.then(|| root.to_string())
    };
    let Some(root) = parts(value) else {
        return Err(("a directory named train or val", "use --data-dir DIR, with DIR/train and DIR/val".into()));
    };
    let others = ["--train-dir", "--val-dir"].into_iter().filter_map(|name| line.value(name));
    if others.into_iter().any(|other| parts(other).is_some_and(|other| other != root)) {
        return Err(("beside the directory of the other split", "put both into one, for --data-dir DIR".into()));
    }
    Ok(vec![("data.dir", root)])
}

/// Micro-batches of a step, which also multiply Horovod's rate of one process.
pub(super) fn accumulation(value: &str, line: &Line) -> Read {
    let rate = line.value("--base-lr").map_or(Some(0.0125), |rate| rate.parse::<f64>().ok());
    let (Ok(batches @ 1..), Some(rate)) = (value.parse::<u32>(), rate) else {
        return Err(("a whole number, at least 1", "use --accumulation-steps N".into()));
    };
    let rate = (rate * f64::from(batches)).to_string();
    Ok(vec![("run.accumulation_steps", value.into()), ("optim.learning_rate", rate)])
}

/// A duration such as `90ep`.
pub(super) fn epochs(key: &'static str, value: &str) -> Read {
    match value.strip_suffix("ep") {
        Some(epochs) => Ok(vec![(key, epochs.into())]),
        None => Err(("a number of epochs, as in 90ep", format!("use {}", flag::setting(key, "N")))),
    }
}

pub(super) fn interval(value: &str) -> Read {
    let steps = value.strip_suffix("ba").map(|steps| format!("{steps}steps"));
    match steps.or_else(|| value.strip_suffix("ep").map(|epochs| format!("{epochs}epochs"))) {
        Some(every) => Ok(vec![("checkpoint.every", every)]),
        None => Err(("a number of epochs or batches, as in 1ep", "use --checkpoint-every 1epochs".into())),
    }
}

/// A policy of timm, with which its colours do not vary.
pub(super) fn policy(value: &str) -> Vec<(&'static str, String)> {
    vec![("data.auto_augment", value.into()), ("data.color_jitter", "0".into())]
}

pub(super) fn jitter(value: &str, line: &Line) -> Vec<(&'static str, String)> {
    if line.value("--aa").is_some() { Vec::new() } else { vec![("data.color_jitter", value.into())] }
}

/// Without `--model-ema` there is no average.
pub(super) fn ema_decay(value: &str, line: &Line) -> Vec<(&'static str, String)> {
    if line.value("--model-ema").is_none() { Vec::new() } else { vec![("optim.ema_decay", value.into())] }
}

/// Kiln's own 0 stands for another rate.
pub(super) fn warmup_lr(value: &str) -> Vec<(&'static str, String)> {
    let is_zero = value.parse() == Ok(0.0);
    vec![("schedule.warmup_lr", if is_zero { "1e-9" } else { value }.into())]
}
