//! The commands for a trained model: evaluate, predict, export, verify.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use kiln_system::Result;

use super::options::Options;
use super::refusal::whole;
use super::training::Training;
use crate::config::{Request, Setting, check, sketch};
use crate::trainer::{Answers, Question, Verification, Which, evaluate, export, predict, prepare_process, verify};
use crate::weights::{Format, Stated};

#[derive(Debug, Args)]
pub struct Source {
    /// The model: the directory of a run or a checkpoint, or a .safetensors or .pth file.
    #[arg(long, value_name = "PATH", default_value = "runs/last")]
    pub checkpoint: PathBuf,
    /// Which checkpoint of a run to use; without it the best, or the latest if there is no best.
    #[arg(long, value_name = "CHOICE", value_parser = which())]
    pub which: Option<Which>,
}

fn which() -> impl TypedValueParser<Value = Which> {
    let choices = [Which::Best, Which::Latest];
    let chosen = move |name: String| if name == Which::Best.name() { Which::Best } else { Which::Latest };
    PossibleValuesParser::new(choices.map(Which::name)).map(chosen)
}

/// Options of other trainers that evaluate instead of training.
pub(super) const EVALUATE: [&str; 2] = ["--evaluate", "--test-only"];

#[derive(Debug, Args)]
pub struct Evaluate {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub options: Options<false>,
}

impl Evaluate {
    /// What `--resume CHECKPOINT --evaluate` or `--pretrained --evaluate` in `request` means in other trainers.
    pub(super) fn instead_of_training(mut request: Request) -> Self {
        let is_checkpoint = |flag: &Setting| flag.key == "checkpoint.resume";
        let resumed = request.flags.iter().find(|flag| is_checkpoint(flag)).map(|flag| flag.value.clone());
        let pretrained = || sketch(&request).map(|config| config.model.pretrained).filter(|wanted| !wanted.is_empty());
        let checkpoint = resumed.or_else(pretrained);
        if checkpoint.is_none() {
            request.complaints.push("an evaluation needs --resume CHECKPOINT or --pretrained WEIGHTS".into());
        }
        request.flags.retain(|flag| !is_checkpoint(flag) && !EVALUATE.contains(&flag.key.as_str()));
        let source = Source { checkpoint: checkpoint.unwrap_or_default().into(), which: None };
        Self { source, options: Options { request } }
    }
}

impl Evaluate {
    pub(super) fn run(self) -> Result<u8> {
        let request = self.options.request.alone();
        check(&request)?;
        prepare_process(&request);
        evaluate(&self.source.checkpoint, self.source.which, request).map(|()| 0)
    }
}

#[derive(Debug, Args)]
pub struct Predict {
    /// JPEG, PNG, BMP or WebP files, folders of them, or - for names from standard input, one per line.
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
    stated: Stated,
    /// Tensor library, as for training.
    #[arg(long, value_name = "CHOICE")]
    backend: Option<String>,
    /// Device, as for training.
    #[arg(long, value_name = "N")]
    gpu_ids: Option<String>,
}

impl Predict {
    pub(super) fn run(self) -> Result<u8> {
        let settings =
            [("parallel.backend", "--backend", self.backend), ("parallel.gpu_ids", "--gpu-ids", self.gpu_ids)];
        let setting = |(key, flag, value): (&str, &str, Option<String>)| {
            Some(Setting { key: key.into(), value: value?, place: flag.into() })
        };
        let flags = settings.into_iter().filter_map(setting).collect();
        let Self { source: Source { checkpoint, which }, images, top, json, csv, stated, .. } = self;
        let answers = match (json, csv) {
            (true, _) => Answers::Json,
            (_, true) => Answers::Csv,
            _ => Answers::Text,
        };
        let request = Request { flags, ..Request::default() };
        check(&request)?;
        prepare_process(&request);
        predict(&checkpoint, which, Question { images, top: top.into(), answers }, stated, request)
    }
}

#[derive(Debug, Args)]
pub struct Export {
    #[command(flatten)]
    source: Source,
    /// safetensors and pth are for torchvision's load_state_dict; onnx holds the whole network.
    #[arg(long, value_name = "FORMAT")]
    to: Format,
    /// File to write; without it, model.safetensors, model.pth or model.onnx here.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Use the trained weights even if the checkpoint has averaged ones.
    #[arg(long)]
    no_ema: bool,
    #[command(flatten)]
    stated: Stated,
}

impl Export {
    pub(super) fn run(self) -> Result<u8> {
        let Self { source: Source { checkpoint, which }, to, output, no_ema, stated } = self;
        let output = output.unwrap_or_else(|| format!("model.{}", to.extension()).into());
        export(&checkpoint, which, to, &output, !no_ema, stated).map(|()| 0)
    }
}

#[derive(Debug, Args)]
#[command(mut_arg("arguments", |it| {
    it.help("Where to repeat the steps, as in -- --gpu-ids 0; the results must not depend on it")
}))]
pub struct Verify {
    /// The run's directory.
    #[arg(value_name = "RUN", default_value = "runs/last")]
    run: PathBuf,
    /// Repeat this many stretches of steps between checkpoints; 0 means all.
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<usize>(0..=u64::MAX))]
    stretches: usize,
    /// Seed that chooses the stretches; without it the choice is random.
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
    /// Find where this other run of the same experiment first differs, by repeating both up to that point.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["stretches", "seed"])]
    against: Option<PathBuf>,
    #[command(flatten)]
    pub(super) training: Training,
}

impl Verify {
    pub(super) fn run(self) -> Result<u8> {
        let Self { run, stretches, seed, against, training: Training { arguments, request } } = self;
        let request = request.alone();
        check(&request)?;
        verify(&Verification { run, stretches, seed, against, arguments, request })
    }
}
