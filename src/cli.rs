//! The command line: from arguments to what the user asked for, in the user's own words.
//!
//! The commands and their own options are declared with clap's derive; the flags that stand for configuration keys are
//! built from the table in [`crate::config::flag`], their help from the comments of `config/default.toml`. Values pass
//! through as text: what they mean, and what is wrong with them, is left to [`crate::config::resolve`], so that every
//! layer is judged by the same rules.

mod job;

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::flag::{self, Flag, Heading, Takes};
use crate::config::schema::{Schema, plain};
use crate::config::{Request, Setting};
use crate::parallel::{Elastic, ParallelConfig};

/// What the user asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Train.
    Train(Request),
    /// Measure a checkpoint on the validation images.
    Evaluate {
        /// A checkpoint's directory or a safetensors file.
        checkpoint: PathBuf,
        /// The configuration.
        request: Request,
    },
    /// Print the configuration that would run.
    Config(Request),
    /// Write a page about runs.
    Report {
        /// Their directories.
        runs: Vec<PathBuf>,
        /// The file.
        output: PathBuf,
    },
    /// Print text that was made from the options.
    Print(String),
    /// Hold the rendezvous of an elastic run.
    Rendezvous {
        /// Where to listen.
        bind: SocketAddr,
        /// On what terms.
        parallel: Box<ParallelConfig>,
    },
    /// Show who takes part in an elastic run.
    Members {
        /// Where it meets, and on what terms.
        parallel: Box<ParallelConfig>,
        /// The rank of a process that is to leave.
        drain: Option<usize>,
    },
    /// Train in several processes on this machine.
    Launch {
        /// How many.
        processes: usize,
        /// What each of them is to do: the arguments after `--`.
        arguments: Vec<OsString>,
        /// The same as a configuration.
        request: Request,
    },
}

/// Reads the arguments and the environment of this process; prints and exits for `--help`, `--version` and arguments
/// that cannot be read (exit code 2).
pub fn parse() -> Command {
    let mut command = Cli::try_parse_from(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    if let Command::Train(request)
    | Command::Evaluate { request, .. }
    | Command::Config(request)
    | Command::Launch { request, .. } = &mut command
    {
        request.environment = std::env::vars_os().filter_map(text).collect();
    }
    if let Command::Evaluate { request, .. } = &mut command {
        // An evaluation is one process, whoever started it.
        request.environment.retain(|(name, _)| name.starts_with("TRAIN__"));
    }
    command
}

/// Trains ResNet-18 data-parallel: any number of replicas, hosted by any number of devices.
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
    /// Measure a checkpoint on the validation images.
    Evaluate(Evaluate),
    /// Print the configuration that would run, as TOML.
    Config(Options<true>),
    /// Train in several processes on this machine: train launch --nproc 2 -- --epochs 3.
    Launch(Launch),
    /// Write a page about one run, or about several compared, for a browser.
    Report(Report),
    /// Print the completions of a shell: source <(train completions bash).
    Completions {
        /// Which shell.
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Print the manual page: train man > train.1.
    Man,
    /// Hold the rendezvous of an elastic run without training, so that the run depends on no trainer.
    Rendezvous(job::Rendezvous),
    /// Show who takes part in an elastic run, or have one process leave it.
    Members(job::Members),
}

#[derive(Debug, Args)]
struct Report {
    /// Directories of runs.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// File to write; curves.svg and curves.png go beside it. Without it, report.html in the run's directory, or here
    /// for several runs.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Launch {
    /// Processes, each with its part of the devices.
    #[arg(long, visible_alias = "nproc-per-node", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nproc: u16,
    /// What each of them is to do, as for train alone.
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Evaluate {
    /// Checkpoint to measure: its directory or a safetensors file.
    #[arg(long, value_name = "PATH")]
    checkpoint: PathBuf,
    #[command(flatten)]
    options: Options<false>,
}

impl Cli {
    /// Reads arguments, the first being the name of the program.
    ///
    /// # Errors
    /// What clap refuses, and its requests to print the help or the version.
    pub fn try_parse_from(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Command, clap::Error> {
        let arguments = normalize(arguments.into_iter().map(Into::into));
        let mut command = Self::command();
        let mut matches = command.try_get_matches_from_mut(arguments)?;
        let cli = Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
        Ok(match cli.action {
            None => Command::Train(cli.options.request),
            Some(Action::Evaluate(Evaluate { checkpoint, options })) => {
                Command::Evaluate { checkpoint, request: options.request }
            }
            Some(Action::Config(options)) => Command::Config(options.request),
            Some(Action::Report(Report { runs, output })) => {
                let name = || PathBuf::from("report.html");
                let usual = || if let [run] = &runs[..] { run.join(name()) } else { name() };
                let output = output.unwrap_or_else(usual);
                Command::Report { runs, output }
            }
            Some(Action::Completions { shell }) => Command::Print(completions(shell)),
            Some(Action::Man) => Command::Print(manual()),
            Some(Action::Rendezvous(job::Rendezvous { bind, terms })) => {
                Command::Rendezvous { bind, parallel: Box::new(terms.at(format!("tcp://{bind}"))) }
            }
            Some(Action::Members(job::Members { dist_url, drain, terms })) => {
                Command::Members { parallel: Box::new(terms.at(dist_url)), drain }
            }
            Some(Action::Launch(Launch { nproc, arguments })) => {
                let words = std::iter::once("train".into()).chain(arguments.iter().cloned());
                let Command::Train(request) = Self::try_parse_from(words)? else {
                    let only = "after 'launch --nproc N --' come arguments for training, no other command";
                    return Err(command.error(clap::error::ErrorKind::InvalidSubcommand, only));
                };
                Command::Launch { processes: nproc.into(), arguments, request }
            }
        })
    }
}

/// What `shell` runs to complete arguments.
fn completions(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "train", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The manual page, in the language of `man`.
fn manual() -> String {
    let mut text = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut text).expect("writing to memory does not fail");
    String::from_utf8_lossy(&text).into_owned()
}

/// The options that make a [`Request`]; without `TRAINS`, those that mean nothing to an evaluation are left out.
#[derive(Debug)]
struct Options<const TRAINS: bool> {
    request: Request,
}

impl<const TRAINS: bool> Args for Options<TRAINS> {
    fn augment_args(command: clap::Command) -> clap::Command {
        let schema = Schema::new();
        let flags = headings(TRAINS).flat_map(|heading| heading.flags.iter().map(move |flag| (heading.title, flag)));
        let args = flags.map(|(title, flag)| describe(flag, &schema).help_heading(title));
        command.args(own_args()).args(args.collect::<Vec<_>>())
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl<const TRAINS: bool> FromArgMatches for Options<TRAINS> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |flag: &&Flag| matches.value_source(flag.long) == Some(ValueSource::CommandLine);
        let setting = |flag: &Flag| Setting {
            key: flag.key.into(),
            value: match flag.takes {
                Takes::Nothing(on) => on.to_string(),
                _ => matches.get_one::<String>(flag.long).cloned().unwrap_or_default(),
            },
            flag: format!("--{}", flag.long),
        };
        let request = Request {
            files: all(matches, "config"),
            config_dirs: all(matches, "config-dir"),
            environment: Vec::new(),
            arguments: all(matches, "arguments"),
            flags: headings(TRAINS).flat_map(|heading| heading.flags).filter(given).map(setting).collect(),
        };
        Ok(Self { request })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn headings(trains: bool) -> impl Iterator<Item = &'static Heading> {
    flag::HEADINGS.iter().filter(move |heading| trains || heading.evaluates)
}

/// Every value of an option that may be repeated.
fn all<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, id: &str) -> Vec<T> {
    matches.get_many::<T>(id).into_iter().flatten().cloned().collect()
}

/// The options that stand for no key.
fn own_args() -> [Arg; 3] {
    let path = |id, name| {
        Arg::new(id)
            .long(id)
            .value_name(name)
            .action(ArgAction::Append)
            .value_parser(clap::value_parser!(PathBuf))
            .help_heading("Configuration")
    };
    [
        Arg::new("arguments").value_name("KEY=VALUE").num_args(0..).help(
            "A setting such as optim.beta1=0.8, or a group such as trainer=ddp, data=cifar100, experiment=quickstart",
        ),
        path("config", "FILE").help("TOML file with any of the keys; may be repeated, the last one wins"),
        path("config-dir", "DIR").help("Directory whose GROUP/NAME.toml files add to the groups; may be repeated"),
    ]
}

/// The option for a flag of the table.
fn describe(flag: &Flag, schema: &Schema) -> Arg {
    let arg = Arg::new(flag.long).long(flag.long).help(help(flag, schema));
    let arg = if flag.alias.is_empty() { arg } else { arg.visible_alias(flag.alias) };
    let value = |arg: Arg, name| arg.value_name(name).overrides_with(flag.long);
    match flag.takes {
        Takes::Value(name) => value(arg, name),
        Takes::Choice => value(arg, "CHOICE"),
        Takes::Optional(name, missing) => {
            value(arg, name).num_args(0..=1).require_equals(true).default_missing_value(missing)
        }
        // A switch and its `--no-` counterpart: the last one on the line counts.
        Takes::Nothing(_) => arg
            .action(ArgAction::SetTrue)
            .overrides_with_all(flag::all().filter(|other| other.key == flag.key).map(|other| other.long)),
    }
}

/// The meaning of the flag's key, its choices and its default.
fn help(flag: &Flag, schema: &Schema) -> String {
    let meaning = schema.meaning(flag.key);
    let default = schema.default(flag.key).map(plain).unwrap_or_default();
    let default = match default.trim_matches(['[', ']']) {
        "" | "false" => String::new(),
        default => format!(" [default: {default}]"),
    };
    match flag.takes {
        Takes::Nothing(false) => format!("Do not: {}", lower_first(meaning)),
        Takes::Choice => format!("{meaning} [choices: {}]{default}", schema.choices(flag.key).join(", ")),
        Takes::Optional(_, missing) => format!("{meaning} --{} alone means {missing}.", flag.long),
        _ => format!("{meaning}{default}"),
    }
}

fn lower_first(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Writes arguments in the one way that clap is told about: options in kebab-case, as in `--batch_size 8`, and with `=`
/// before a value that clap would not take from the next argument, as in `--resume PATH` and `--lr -1e-3`.
fn normalize(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.peekable();
    let mut normal = Vec::new();
    while let Some(argument) = arguments.next() {
        let mut argument = kebab_case(argument);
        if let Some(value) = arguments.next_if(|next| is_value_of(&argument, &next.to_string_lossy())) {
            argument.push("=");
            argument.push(value);
        }
        normal.push(argument);
    }
    normal
}

/// The option with `-` for every `_` of its name; its value and other arguments stay as they are.
fn kebab_case(argument: OsString) -> OsString {
    match argument.to_str() {
        Some(option) if option.starts_with("--") => {
            let (name, value) = option.split_at(option.find('=').unwrap_or(option.len()));
            format!("{}{value}", name.replace('_', "-")).into()
        }
        _ => argument,
    }
}

/// Whether `word` belongs to the option before it: a target of `--resume`, which is no option and no `KEY=VALUE` (whose
/// key has no slash), limits of `--elastic`, or a negative number.
fn is_value_of(option: &OsStr, word: &str) -> bool {
    let key = |(key, _): (&str, &str)| key.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if option == "--elastic" {
        return word.parse::<Elastic>().is_ok();
    }
    if word.starts_with('-') {
        option.to_str().is_some_and(|option| option.starts_with("--") && !option.contains('='))
            && word.parse::<f64>().is_ok()
    } else {
        option == "--resume" && !word.split_once('=').is_some_and(key)
    }
}
