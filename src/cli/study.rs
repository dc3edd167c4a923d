//! The commands that measure trainings: `train scaling`, `train find` and `train plan`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use kiln_system::{Error, Result};

use super::refusal::whole;
use super::training::Training;
use crate::config::Request;
use crate::study::scaling::{Mode, Sizes};
use crate::trainer::{find_batch_size, find_learning_rate, plan, scaling};

#[derive(Debug, Args)]
pub struct Scaling {
    /// Numbers of replicas to measure, separated by commas.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2", value_parser = whole::<u16>(1..=1024))]
    replicas: Vec<u16>,
    /// Numbers of processes that host the replicas; combinations with fewer replicas than processes are skipped.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1", value_parser = whole::<u16>(1..=1024))]
    processes: Vec<u16>,
    /// What stays the same: the batch of each replica (weak), or the global batch (strong).
    #[arg(long, value_name = "MODE", default_value = "both")]
    mode: Modes,
    /// Measured steps of each run.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole::<u16>(1..=65535))]
    steps: u16,
    /// Steps before the measured ones.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole::<u16>(0..=65535))]
    warmup_steps: u16,
    /// CPU threads per replica; 0 means the cores divided by the largest number of replicas.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u16>(0..=1024))]
    threads_per_replica: u16,
    /// Directory for the results: scaling.csv, .json and .svg.
    #[arg(long, value_name = "DIR", default_value = "scaling")]
    output_dir: PathBuf,
    #[command(flatten)]
    pub(super) training: Training,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Modes {
    Weak,
    Strong,
    Both,
}

impl Scaling {
    pub(super) fn run(self) -> Result<u8> {
        let sizes = |numbers: Vec<u16>| {
            let mut numbers: Vec<usize> = numbers.into_iter().map(usize::from).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers
        };
        let sizes = Sizes {
            replicas: sizes(self.replicas),
            processes: sizes(self.processes),
            modes: match self.mode {
                Modes::Weak => vec![Mode::Weak],
                Modes::Strong => vec![Mode::Strong],
                Modes::Both => vec![Mode::Weak, Mode::Strong],
            },
            steps: self.steps.into(),
            warmup: self.warmup_steps.into(),
            threads: self.threads_per_replica.into(),
            output: self.output_dir,
        };
        scaling(&sizes, &self.training.arguments, &self.training.request.alone())
    }
}

#[derive(Debug, Args)]
#[command(mut_arg("arguments", |it| {
    it.help("As for train itself; every placement has as many images per step as these arguments give")
}))]
pub struct Plan {
    /// Processes with one device each, as 'train launch' starts them; 1 means one process with all --gpu-ids. With
    /// --link each is on a machine like this one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u16>(1..=1024))]
    nproc: u16,
    /// Train the three best placements for some steps, and print measurements and predictions.
    #[arg(long)]
    run: bool,
    #[command(flatten)]
    pub(super) training: Training,
}

impl Plan {
    pub(super) fn run(self) -> Result<u8> {
        let Training { arguments, request } = self.training;
        plan(self.nproc.into(), self.run, &arguments, &request.alone())
    }
}

#[derive(Debug, Args)]
#[command(arg_required_else_help = false)]
pub struct Find {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Find a learning rate with a range test: one short run with a growing learning rate.
    Lr {
        /// Lowest learning rate, of all replicas together.
        #[arg(long, value_name = "X", default_value_t = 1e-6, value_parser = rate)]
        from: f64,
        /// Highest learning rate.
        #[arg(long, value_name = "X", default_value_t = 10.0, value_parser = rate)]
        to: f64,
        /// Optimizer steps.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole::<u16>(20..=65535))]
        steps: u16,
        #[command(flatten)]
        common: Common,
    },
    /// Find a batch size per replica that fits and is fast: sizes double until one does not fit, or until two in a row
    /// are slower than a smaller one.
    BatchSize {
        /// Largest size to try.
        #[arg(long, value_name = "N", default_value_t = 4096, value_parser = whole::<u32>(8..=1_000_000))]
        largest: u32,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, Args)]
struct Common {
    /// Directory for the results: .csv, .json and .svg.
    #[arg(long, value_name = "DIR", default_value = "find")]
    output_dir: PathBuf,
    #[command(flatten)]
    training: Training,
}

/// A parser of a positive, finite learning rate.
fn rate(text: &str) -> std::result::Result<f64, String> {
    let rate: Option<f64> = text.parse().ok().filter(|rate: &f64| (1e-30..=1e30).contains(rate));
    rate.ok_or_else(|| "a number, 1e-30 to 1e30".into())
}

impl Find {
    pub(super) fn request(&mut self) -> &mut Request {
        let (What::Lr { common, .. } | What::BatchSize { common, .. }) = &mut self.what;
        &mut common.training.request
    }

    pub(super) fn run(self) -> Result<u8> {
        match self.what {
            What::Lr { from, to, .. } if from >= to => {
                let rule = format!("--from must be below --to, got '{from}' and '{to}'; swap them");
                Err(Error::usage(rule))
            }
            What::Lr { from, to, steps, common: Common { output_dir, training } } => {
                let request = training.request.alone();
                find_learning_rate([from, to], steps.into(), &training.arguments, &request, &output_dir)
            }
            What::BatchSize { largest, common: Common { output_dir, training } } => {
                find_batch_size(largest as usize, &training.arguments, &training.request.alone(), &output_dir)
            }
        }
    }
}
