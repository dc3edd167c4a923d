//! The commands for a trained model: evaluate, predict, export, verify.

use std::path::PathBuf;

use clap::Args;

use super::options::Options;
use super::refusal::{as_checkpoint, whole};
use super::{Cli, Command, Refusal};
use crate::config::{Request, Setting};
use crate::data::Exif;
use crate::error::Error;
use crate::trainer::{Answers, Verification, Which};
use crate::weights::description::{deviation, mean, share, size};
use crate::weights::{Format, Stated};

#[derive(Debug, Args)]
pub(super) struct Source {
    /// The model: a run's directory, a checkpoint's directory, or a .safetensors or .pth file.
    #[arg(long, value_name = "PATH", default_value = "runs/last")]
    checkpoint: PathBuf,
    /// Which checkpoint of a run's directory to take; without it the best, or the latest if there is no best one.
    #[arg(long, value_name = "CHOICE")]
    which: Option<Which>,
}

/// What the user says about images and classes.
#[derive(Debug, Args)]
struct Images {
    /// Mean of red, green and blue, for values from 0 to 1; without it, what the weights say.
    #[arg(long, value_name = "R,G,B", value_parser = mean)]
    mean: Option<[f32; 3]>,
    /// Their standard deviation, as --mean.
    #[arg(long, value_name = "R,G,B", value_parser = deviation)]
    std: Option<[f32; 3]>,
    /// Side in pixels that images are resized to; without it, that of the training images.
    #[arg(long = "image-size", value_name = "N", value_parser = size)]
    size: Option<usize>,
    /// Side of the central square, as a share of the image's shorter side, or 0 for the whole image; without it, what the
    /// weights say.
    #[arg(long, value_name = "X", value_parser = share)]
    center_crop: Option<f64>,
    /// Whether images are turned upright, as their camera says; without it, what the weights say.
    #[arg(long, value_name = "CHOICE")]
    exif: Option<Exif>,
    /// Names of the classes in the order of the outputs; without them, what the weights say.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    classes: Vec<String>,
}

impl From<Images> for Stated {
    fn from(Images { mean, std, size, center_crop, exif, classes }: Images) -> Self {
        Self { mean, std, size, center_crop, exif, classes }
    }
}

#[derive(Debug, Args)]
pub(super) struct Evaluate {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    options: Options<false>,
}

impl Evaluate {
    pub(super) fn command(self) -> Result<Command, Error> {
        let Source { checkpoint, which } = self.source;
        let request = self.options.request;
        match request.arguments.iter().find(|argument| !argument.contains('=')) {
            Some(path) => Err(Error::usage(format!("unknown argument '{path}'; {}", as_checkpoint(path)))),
            None => Ok(Command::Evaluate { checkpoint, which, request }),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Predict {
    /// JPEG, PNG, BMP or WebP files, folders of them, or - for names from standard input, one a line.
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<PathBuf>,
    #[command(flatten)]
    source: Source,
    /// How many classes to name for each image.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole::<u16>(1..=65535))]
    top: u16,
    /// Print JSON.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV: a row per image and class.
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    stated: Images,
    /// Tensor library, as for training.
    #[arg(long, value_name = "CHOICE")]
    backend: Option<String>,
    /// Device, as for training.
    #[arg(long, value_name = "N")]
    gpu_ids: Option<String>,
}

impl Predict {
    pub(super) fn command(self) -> Command {
        let settings =
            [("parallel.backend", "--backend", self.backend), ("parallel.gpu_ids", "--gpu-ids", self.gpu_ids)];
        let setting = |(key, flag, value): (&str, &str, Option<String>)| {
            Some(Setting { key: key.into(), value: value?, flag: flag.into() })
        };
        let flags = settings.into_iter().filter_map(setting).collect();
        let Self { source: Source { checkpoint, which }, images, top, json, csv, stated, .. } = self;
        let answers = match (json, csv) {
            (true, _) => Answers::Json,
            (_, true) => Answers::Csv,
            _ => Answers::Text,
        };
        let request = Request { flags, ..Request::default() };
        Command::Predict { checkpoint, which, images, top: top.into(), answers, stated: stated.into(), request }
    }
}

#[derive(Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    source: Source,
    /// safetensors and pth hold what torchvision's load_state_dict accepts, onnx the whole network.
    #[arg(long, value_name = "FORMAT")]
    to: Format,
    /// File to write; without it, model.safetensors, model.pth or model.onnx here.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Take the weights as trained, also where the checkpoint has averaged ones.
    #[arg(long)]
    no_ema: bool,
    #[command(flatten)]
    stated: Images,
}

impl Export {
    pub(super) fn command(self) -> Command {
        let Self { source: Source { checkpoint, which }, to, output, no_ema, stated } = self;
        let output = output.unwrap_or_else(|| format!("model.{}", to.extension()).into());
        Command::Export { checkpoint, which, to, output, averaged: !no_ema, stated: stated.into() }
    }
}

#[derive(Debug, Args)]
pub(super) struct Verify {
    /// The run's directory.
    #[arg(value_name = "RUN", default_value = "runs/last")]
    run: PathBuf,
    /// Repeat the steps of this many stretches between checkpoints; 0 means all.
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<usize>(0..=u64::MAX))]
    stretches: usize,
    /// Which stretches: the same number chooses the same. Without it, others each time.
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
    /// Another run of the same experiment: says where the two part, by repeating both up to there.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["stretches", "seed"])]
    against: Option<PathBuf>,
    /// Where the steps are repeated, as in -- --gpu-ids 0; the results must not depend on it.
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

impl Verify {
    pub(super) fn command(self) -> Result<Command, Refusal> {
        let Self { run, stretches, seed, against, arguments } = self;
        let request = Cli::training(&arguments, "verify RUN --")?;
        Ok(Command::Verify(Verification { run, stretches, seed, against, arguments, request }))
    }
}
