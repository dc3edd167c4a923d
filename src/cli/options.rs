//! The options for configuration keys, built from the table of flags.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};

use super::refusal::as_checkpoint;
use crate::config::alias::origins::ORIGINS;
use crate::config::alias::{self, Named};
use crate::config::flag::{self, Flag, Heading, Takes};
use crate::config::schema::{self, plain};
use crate::config::{Request, Setting, resolve};
use crate::trainer::{completed, prepare_process, train};

/// The meaning of `run.output_dir` for an evaluation.
const EVALUATED: &str =
    "Directory for the tables and the confusion matrix; empty means evaluation/ in the run's directory.";

/// The options of a [`Request`]; without `TRAINS`, only the options of an evaluation.
#[derive(Debug)]
pub struct Options<const TRAINS: bool> {
    pub request: Request,
}

impl Options<true> {
    pub(super) fn run(self) -> kiln_system::Result<u8> {
        prepare_process(&self.request);
        train(resolve(&completed(self.request)?)?)
    }
}

impl<const TRAINS: bool> Args for Options<TRAINS> {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flags = headings(TRAINS).flat_map(|heading| heading.flags.iter().map(move |flag| (heading.title, flag)));
        let args = flags.map(|(title, flag)| describe(flag, help(flag, TRAINS)).help_heading(title));
        let foreign = alias::flags().filter(|_| TRAINS).map(|(long, alias)| describe_foreign(long, alias));
        command.args(own_args()).args(TRAINS.then(origin)).args(args.collect::<Vec<_>>()).args(foreign)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl<const TRAINS: bool> FromArgMatches for Options<TRAINS> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let setting = |id: &str, key: &str, long: &str| {
            let value = matches.get_one::<String>(id)?.clone();
            Some(Setting { key: key.into(), value, place: format!("--{long}") })
        };
        let foreign = alias::flags().filter(|_| TRAINS);
        let foreign = foreign.filter_map(|(long, (name, _))| setting(name, name, &long));
        let own = headings(TRAINS).flat_map(|heading| heading.flags);
        let own = own.filter_map(|flag| setting(flag.long, flag.key, flag.long));
        let is_setting = |argument: &String| TRAINS || argument.contains('=');
        let (arguments, paths): (Vec<_>, Vec<_>) = all(matches, "arguments").into_iter().partition(is_setting);
        let complaint = |path: &String| format!("unknown argument '{path}'; {}", as_checkpoint(path));
        let request = Request {
            origin: matches.try_get_one::<String>("as").ok().flatten().cloned(),
            files: all(matches, "config"),
            config_dirs: all(matches, "config-dir"),
            arguments,
            flags: foreign.chain(own).collect(),
            complaints: paths.iter().map(complaint).collect(),
            ..Request::default()
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

/// The options without a key.
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
            "A setting, as in optim.beta1=0.8, or a group, as in trainer=ddp, data=cifar100, experiment=quickstart",
        ),
        path("config", "FILE").help("TOML file with any of the keys; may be repeated, the last one wins"),
        path("config-dir", "DIR").help("Directory with more groups, as GROUP/NAME.toml; may be repeated"),
    ]
}

/// The option for what the command line means.
fn origin() -> Arg {
    let names: Vec<_> = ORIGINS.iter().map(|origin| origin.name).collect();
    let help = format!(
        "Read the options as this script does: batch, learning rate, world size, defaults [choices: {}]",
        names.join(", ")
    );
    Arg::new("as").long("as").value_name("ORIGIN").help(help).help_heading("Configuration")
}

/// The option for a flag of the table.
fn describe(flag: &Flag, help: String) -> Arg {
    let arg = Arg::new(flag.long).long(flag.long).help(help);
    let arg = arg.visible_aliases(flag.aliases.iter().copied());
    let value = |arg: Arg, name| arg.value_name(name).overrides_with(flag.long);
    match flag.takes {
        Takes::Value(name) => value(arg, name),
        Takes::Choice => value(arg, "CHOICE"),
        Takes::Optional(name, missing) => {
            value(arg, name).num_args(0..=1).require_equals(true).default_missing_value(missing)
        }
        // A switch and its `--no-` form: the last one wins.
        Takes::Nothing(on) => arg
            .action(ArgAction::Set)
            .num_args(0)
            .default_missing_value(on.to_string())
            .overrides_with_all(flag::all().filter(|other| other.key == flag.key).map(|other| other.long)),
    }
}

/// The option for a flag of another trainer, which is accepted but hidden.
fn describe_foreign(long: String, (name, alias): Named) -> Arg {
    let arg = Arg::new(name).long(long).hide(true).action(ArgAction::Set).overrides_with(name);
    arg.value_name("VALUE").num_args(usize::from(alias.takes_value)).default_missing_value("")
}

/// The meaning of the flag's key, its choices and its default.
fn help(flag: &Flag, trains: bool) -> String {
    let is_evaluated = !trains && flag.key == "run.output_dir";
    let meaning = if is_evaluated { EVALUATED } else { schema::meaning(flag.key) };
    let default = schema::default(flag.key).map(plain).unwrap_or_default();
    let default = match default.trim_matches(['[', ']']) {
        "" | "false" => String::new(),
        default => format!(" [default: {default}]"),
    };
    match flag.takes {
        Takes::Nothing(false) => format!("Do not {}", lower_first(meaning)),
        Takes::Choice => format!("{meaning} [choices: {}]{default}", schema::choices(flag.key).join(", ")),
        Takes::Optional(_, missing) => format!("{meaning} --{} alone means {missing}.", flag.long),
        _ => format!("{meaning}{default}"),
    }
}

fn lower_first(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
