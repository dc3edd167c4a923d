//! The command line: from arguments to a command.
//!
//! The commands and their own options are declared here with clap's derive. `options` builds the flags of configuration
//! keys from the table in [`crate::config::flag`], their help from the comments of `config/default.toml`; `refusal`
//! words the errors. Values stay text until [`crate::config::resolve`] checks all layers by the same rules.

mod job;
mod launch;
mod model;
mod options;
mod pack;
mod printed;
mod refusal;
mod rewriting;
mod spelling;
mod study;
mod sweep;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use self::options::Options;
pub use self::refusal::Refusal;
use crate::config::grid::Point;
use crate::config::{self, Request};
use crate::data::{DataConfig, Recipe};
use crate::error::{Error, Result};
use crate::launch::Machines;
use crate::parallel::ParallelConfig;
use crate::study::finding;
use crate::study::scaling::Sizes;
use crate::trainer::{Answers, PlanOptions, SweepOptions, Verification, Which};
use crate::weights::{Format, Stated};

/// A command with its arguments.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Train(Request),
    Evaluate {
        checkpoint: PathBuf,
        which: Option<Which>,
        request: Request,
    },
    Predict {
        checkpoint: PathBuf,
        which: Option<Which>,
        images: Vec<PathBuf>,
        top: usize,
        answers: Answers,
        stated: Stated,
        request: Request,
    },
    Export {
        checkpoint: PathBuf,
        which: Option<Which>,
        to: Format,
        output: PathBuf,
        averaged: bool,
        stated: Stated,
    },
    Pack {
        config: Box<DataConfig>,
        output: PathBuf,
        recipe: Option<Recipe>,
    },
    Scaling {
        sizes: Sizes,
        /// What is trained: the arguments after `--`.
        arguments: Vec<String>,
        request: Request,
    },
    Find {
        what: finding::Find,
        /// What is trained: the arguments after `--`.
        arguments: Vec<String>,
        request: Request,
        output: PathBuf,
    },
    Plan {
        options: PlanOptions,
        /// What is trained: the arguments after `--`.
        arguments: Vec<String>,
        request: Request,
    },
    Config(Request),
    Report {
        runs: Vec<PathBuf>,
        output: Option<PathBuf>,
    },
    Sweep {
        /// Where the runs go; `None` for the numbered directory of this sweep.
        directory: Option<PathBuf>,
        points: Vec<Point>,
        options: SweepOptions,
    },
    Verify(Verification),
    Print(String),
    Rendezvous {
        bind: SocketAddr,
        parallel: Box<ParallelConfig>,
    },
    Members {
        parallel: Box<ParallelConfig>,
        drain: Option<usize>,
    },
    Doctor,
    Slurm {
        script: String,
        submit: bool,
        request: Request,
    },
    Secret(PathBuf),
    Launch {
        processes: usize,
        machines: Machines,
        /// What each of them is to do: the arguments after `--`.
        arguments: Vec<OsString>,
        request: Request,
    },
}

impl Command {
    /// What is to be resolved for it.
    fn requests(&mut self) -> Vec<&mut Request> {
        match self {
            Self::Train(request)
            | Self::Evaluate { request, .. }
            | Self::Predict { request, .. }
            | Self::Config(request)
            | Self::Launch { request, .. }
            | Self::Slurm { request, .. }
            | Self::Scaling { request, .. }
            | Self::Find { request, .. }
            | Self::Verify(Verification { request, .. })
            | Self::Plan { request, .. } => vec![request],
            Self::Sweep { points, .. } => points.iter_mut().map(|point| &mut point.request).collect(),
            _ => Vec::new(),
        }
    }

    /// Adds the `faults` of the arguments. A training reports them together with those of its settings; a command that
    /// opens a model first reports them now.
    fn with_faults(mut self, faults: Vec<String>) -> Result<Self> {
        let opens = matches!(self, Self::Evaluate { .. } | Self::Predict { .. } | Self::Verify(_));
        let mut requests = self.requests();
        requests.iter_mut().for_each(|request| request.complaints = [&faults[..], &request.complaints].concat());
        let lines = match &requests[..] {
            [request] if opens && !faults.is_empty() => config::faults(request),
            [] => faults,
            _ => Vec::new(),
        };
        if lines.is_empty() { Ok(self) } else { Err(Error::Usage(lines)) }
    }
}

/// Reads the arguments and the environment of this process; prints and exits for `--help` and `--version`.
///
/// # Errors
/// [`Error::Usage`] with all errors of the arguments, if they are not a valid command.
pub fn parse() -> Result<Command> {
    let mut command = match Cli::try_parse_from(std::env::args_os()) {
        Ok(command) => command,
        Err(Refusal::Shown(help)) => help.exit(),
        Err(Refusal::Wrong(error)) => return Err(error),
    };
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    if !matches!(command, Command::Predict { .. }) {
        let environment: Vec<_> = std::env::vars_os().filter_map(text).collect();
        command.requests().into_iter().for_each(|request| request.environment = environment.clone());
    }
    if let Command::Evaluate { request, .. }
    | Command::Scaling { request, .. }
    | Command::Find { request, .. }
    | Command::Verify(Verification { request, .. })
    | Command::Plan { request, .. } = &mut command
    {
        // These commands run in one process, even under a launcher.
        request.environment.retain(|(name, _)| name.starts_with("TRAIN__"));
    }
    Ok(command)
}

/// Trains a ResNet data-parallel: any number of replicas, hosted by any number of devices.
#[derive(Debug, Parser)]
#[command(
    name = "train",
    version,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    after_help = AFTER_HELP
)]
pub struct Cli {
    #[command(flatten)]
    options: Options<true>,
    #[command(subcommand)]
    action: Option<Action>,
}

const AFTER_HELP: &str = "\
'train config' prints every key; those without a flag are set as KEY=VALUE.

  train experiment=quickstart                    two replicas, drawn images, about a minute
  train --world-size 4 --gpu-ids 0,1,2,3         one replica per GPU
  train optim=adamw optim.beta2=0.99 --lr 3e-4   a group, a key, a flag
  train --resume                                 go on from the latest checkpoint

Later wins: config/default.toml < --config < groups < TRAIN__SECTION__KEY < KEY=VALUE < flags.";

#[derive(Debug, Subcommand)]
enum Action {
    /// Measure a checkpoint on the validation images, class by class.
    Evaluate(model::Evaluate),
    /// Classify images: train predict --checkpoint runs/last cat.jpg dog.png.
    Predict(model::Predict),
    /// Write the weights of a checkpoint for PyTorch or ONNX Runtime.
    Export(model::Export),
    /// Write images into one file that is fast to read: train pack photos --output photos.pack.
    Pack(pack::Pack),
    /// Print the configuration that would run, as TOML.
    Config(Options<true>),
    /// Train in several processes on this machine: train launch --nproc 2 -- --epochs 3.
    Launch(launch::Launch),
    /// Measure how training scales: train scaling --replicas 1,2,4 -- --batch-size 32.
    Scaling(study::Scaling),
    /// Find a learning rate (find lr) or a batch size that fits and is fast (find batch-size).
    Find(study::Find),
    /// Find the fastest number of replicas and stages for devices: train plan -- --gpu-ids 0,1 --accumulation-steps 4.
    Plan(study::Plan),
    /// Train once per combination of values, or at random: train sweep optim.learning_rate=0.05,0.1 run.seed=1,2 -- --epochs 3.
    Sweep(sweep::Sweep),
    /// Check that a run's log and checkpoints are what its training computed, by repeating some of its steps.
    Verify(model::Verify),
    /// Write a page about one run, or a comparison of several, for a browser.
    Report(Report),
    /// Print what this build and this machine have for a training, and how to get what is missing.
    Doctor,
    /// Print the completions of a shell: source <(train completions bash).
    Completions {
        /// Which shell.
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Print the manual page: train man > train.1.
    Man,
    /// Print a batch script for SLURM, or submit it: train slurm --nodes 12 --gpus-per-node 8 -- --epochs 50.
    Slurm(job::Slurm),
    /// Serve as the rendezvous of an elastic run without training.
    Rendezvous(job::Rendezvous),
    /// List the processes of an elastic run, or ask one to leave it.
    Members(job::Members),
    /// Write a new secret to a file, for the --job-secret-file of all processes of a run.
    Secret(job::Secret),
}

#[derive(Debug, Args)]
struct Report {
    /// Directories of runs.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// File to write; curves.svg goes beside it. Without it, report.html in the run's directory, or in the
    /// directory report for several runs.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Cli {
    /// Reads arguments, the first being the name of the program. What is wrong with those of a training is in its
    /// request, where [`config::resolve`] finds it.
    ///
    /// # Errors
    /// Everything that is wrong with other arguments, or a wish to see the help or the version.
    pub fn try_parse_from(
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> std::result::Result<Command, Refusal> {
        let mut command = Self::command();
        let arguments = spelling::normalize(arguments.into_iter().map(Into::into));
        let arguments = rewriting::as_command(arguments, |word| command.find_subcommand(word).is_some());
        let (mut matches, faults) = refusal::read(&mut command, arguments)?;
        let cli = Self::from_arg_matches_mut(&mut matches).map_err(|error| Error::usage(error.to_string()))?;
        match cli.chosen() {
            Err(Refusal::Wrong(Error::Usage(more))) => Err(Error::Usage([faults, more].concat()).into()),
            command => Ok(command?.with_faults(faults)?),
        }
    }

    fn chosen(self) -> std::result::Result<Command, Refusal> {
        Ok(match self.action {
            None => Command::Train(self.options.request),
            Some(Action::Evaluate(arguments)) => arguments.command()?,
            Some(Action::Predict(arguments)) => arguments.command(),
            Some(Action::Export(arguments)) => arguments.command(),
            Some(Action::Pack(arguments)) => arguments.command(),
            Some(Action::Scaling(arguments)) => arguments.command()?,
            Some(Action::Find(arguments)) => arguments.command()?,
            Some(Action::Plan(arguments)) => arguments.command()?,
            Some(Action::Config(options)) => Command::Config(options.request),
            Some(Action::Sweep(arguments)) => arguments.command()?,
            Some(Action::Verify(arguments)) => arguments.command()?,
            Some(Action::Report(Report { runs, output })) => Command::Report { runs, output },
            Some(Action::Completions { shell }) => Command::Print(printed::completions(shell)),
            Some(Action::Slurm(arguments)) => arguments.command()?,
            Some(Action::Doctor) => Command::Doctor,
            Some(Action::Man) => Command::Print(printed::manual()),
            Some(Action::Rendezvous(arguments)) => arguments.command(),
            Some(Action::Members(job::Members { dist_url, drain, terms })) => {
                Command::Members { parallel: Box::new(terms.at(dist_url)), drain }
            }
            Some(Action::Secret(job::Secret { file })) => Command::Secret(file),
            Some(Action::Launch(launch)) => launch.command()?,
        })
    }

    /// The arguments after `before`, parsed as those of `train`.
    fn training(arguments: &[impl Clone + Into<OsString>], before: &str) -> std::result::Result<Request, Refusal> {
        let words = std::iter::once("train".into()).chain(arguments.iter().cloned().map(Into::into));
        match Self::try_parse_from(words)? {
            Command::Train(request) => Ok(request),
            _ => {
                let only =
                    format!("after '{before}' come arguments for training, not another command; leave the command out");
                Err(Error::usage(only).into())
            }
        }
    }
}
