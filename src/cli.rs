//! The command line: from arguments to a command, which runs itself.
//!
//! The commands and their own options are declared here with clap's derive. `options` builds the flags of configuration
//! keys from the table in [`crate::config::flag`], their help from the comments of `config/default.toml`; `refusal`
//! answers unknown options. Values stay text until [`crate::config::resolve`] checks all layers by the same rules.

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
mod training;
mod yaml;

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use kiln_system::{Error, Result};

use self::model::{EVALUATE, Evaluate};
use self::options::Options;
use crate::config::Request;

/// Declares the commands: the help, the name and the arguments of each, which run it.
macro_rules! commands {
    ($($(#[$attribute:meta])* $name:ident($arguments:ty),)*) => {
        /// A command with its arguments.
        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($(#[$attribute])* $name($arguments),)*
        }

        impl Command {
            /// Runs it, and returns the exit code.
            ///
            /// # Errors
            /// What ends the command.
            pub fn run(self) -> Result<u8> {
                match self { $(Self::$name(arguments) => arguments.run(),)* }
            }
        }
    };
}

commands! {
    #[command(skip)]
    Train(Options<true>),
    /// Measure a checkpoint on the validation images: accuracy, per-class accuracy, confusion matrix.
    Evaluate(Evaluate),
    /// Classify images: train predict --checkpoint runs/last cat.jpg dog.png.
    Predict(model::Predict),
    /// Write the weights of a checkpoint for PyTorch or ONNX Runtime.
    Export(model::Export),
    /// Write images into one file that is fast to read: train pack photos --output photos.pack.
    Pack(pack::Pack),
    /// Print the configuration that would run, as TOML.
    Config(printed::Config),
    /// Train in several processes on this machine: train launch --nproc 2 -- --epochs 3.
    Launch(launch::Launch),
    /// Measure how training scales: train scaling --replicas 1,2,4 -- --batch-size 32.
    Scaling(study::Scaling),
    /// Find a learning rate (find lr) or a batch size that fits and is fast (find batch-size).
    Find(study::Find),
    /// Find the fastest placement of replicas and pipeline stages: train plan -- --gpu-ids 0,1 --accumulation-steps 4.
    Plan(study::Plan),
    /// Train once per combination of values, or for random values: train sweep optim.learning_rate=0.05,0.1 -- --epochs
    /// 3.
    Sweep(sweep::Sweep),
    /// Check a run's log and checkpoints by repeating some of its steps.
    Verify(model::Verify),
    /// Write an HTML report of one run, or a comparison of several.
    Report(printed::Report),
    /// Serve the page of a run, while it trains or afterwards: train serve runs/0001.
    Serve(printed::Serve),
    /// Print what this build and this machine support, and how to install what is missing.
    Doctor(printed::Doctor),
    /// Print the completions of a shell: source <(train completions bash).
    Completions(printed::Completions),
    /// Print the manual page: train man > train.1.
    Man(printed::Man),
    /// Print a batch script for SLURM, or submit it: train slurm --nodes 12 --gpus-per-node 8 -- --epochs 50.
    Slurm(job::Slurm),
    /// Serve as the rendezvous of an elastic run without training.
    Rendezvous(job::Rendezvous),
    /// List the processes of an elastic run, or ask one to leave it.
    Members(job::Members),
    /// Write a new secret to a file, for the --job-secret-file of all processes of a run.
    Secret(job::Secret),
    #[command(skip)]
    Help(printed::Help),
}

impl Command {
    /// What is resolved for it, if anything is.
    pub fn request(&mut self) -> Option<&mut Request> {
        Some(match self {
            Self::Train(options) | Self::Config(printed::Config { options }) => &mut options.request,
            Self::Evaluate(Evaluate { options, .. }) => &mut options.request,
            Self::Launch(launch::Launch { training, .. })
            | Self::Scaling(study::Scaling { training, .. })
            | Self::Plan(study::Plan { training, .. })
            | Self::Sweep(sweep::Sweep { training, .. })
            | Self::Verify(model::Verify { training, .. })
            | Self::Slurm(job::Slurm { training, .. }) => &mut training.request,
            Self::Find(find) => find.request(),
            _ => return None,
        })
    }
}

/// Reads the arguments and the environment of this process.
///
/// # Errors
/// [`Error::Usage`] if the arguments are not a command.
pub fn parse() -> Result<Command> {
    let mut command = Cli::try_parse_from(std::env::args_os())?;
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    if let Some(request) = command.request() {
        request.environment = std::env::vars_os().filter_map(text).collect();
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
    command: Option<Command>,
}

const AFTER_HELP: &str = "\
'train config' prints every key; those without a flag are set as KEY=VALUE.

  train experiment=quickstart                    two replicas, drawn images, about a minute
  train --world-size 4 --gpu-ids 0,1,2,3         one replica per GPU
  train optim=adamw optim.beta2=0.99 --lr 3e-4   a group, a key, a flag
  train --resume                                 continue from the latest checkpoint

Later wins: config/default.toml < --config < groups < TRAIN__SECTION__KEY < KEY=VALUE < flags.";

impl Cli {
    /// Reads arguments, the first being the name of the program. Unknown options of a command with settings are in its
    /// request, where [`config::resolve`](crate::config::resolve()) finds them with all errors of the settings.
    ///
    /// # Errors
    /// [`Error::Usage`] with what is wrong with other arguments.
    pub fn try_parse_from(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Command> {
        let mut clap = Self::command();
        clap.build();
        let words = yaml::expanded(spelling::normalize(arguments.into_iter().map(Into::into)))?;
        let words = spelling::normalize(words.into_iter());
        let words = rewriting::as_command(words, |word| clap.find_subcommand(word).is_some());
        let chosen = refusal::innermost(&clap, &words).clone();
        let (words, unknown) = refusal::without_unknown(&chosen, words);
        let parsed = clap.try_get_matches_from_mut(words).and_then(|matches| Self::from_arg_matches(&matches));
        let mut command = match parsed {
            Ok(Self { command: Some(command), .. }) => command,
            Ok(Self { options: Options { request }, .. })
                if request.flags.iter().any(|flag| EVALUATE.contains(&&*flag.key)) =>
            {
                Command::Evaluate(Evaluate::instead_of_training(request))
            }
            Ok(Self { options, .. }) => Command::Train(options),
            Err(help) if !help.use_stderr() => return Ok(Command::Help(printed::Help(help))),
            // What is missing was probably misspelt.
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument && !unknown.is_empty() => {
                return Err(Error::Usage(unknown));
            }
            Err(error) => return Err(Error::Usage([unknown, vec![refusal::line(&chosen, &error)]].concat())),
        };
        match command.request() {
            Some(request) => drop(request.complaints.splice(..0, unknown)),
            None if unknown.is_empty() => {}
            None => return Err(Error::Usage(unknown)),
        }
        Ok(command)
    }
}
