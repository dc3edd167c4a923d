//! The options for configuration keys, built from the table of flags.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};

use crate::config::alias::{self, Alias};
use crate::config::flag::{self, Flag, Heading, Takes};
use crate::config::schema::{Schema, plain};
use crate::config::{Request, Setting};

/// Keys with another meaning for an evaluation than for a training.
const EVALUATED: [(&str, &str); 1] = [(
    "run.output_dir",
    "Directory for the tables and the confusion matrix; empty means evaluation/ in the run's directory.",
)];

/// The options of a [`Request`]; without `TRAINS`, only those of an evaluation.
#[derive(Debug)]
pub(super) struct Options<const TRAINS: bool> {
    pub(super) request: Request,
}

impl<const TRAINS: bool> Args for Options<TRAINS> {
    fn augment_args(command: clap::Command) -> clap::Command {
        let schema = Schema::new();
        let flags = headings(TRAINS).flat_map(|heading| heading.flags.iter().map(move |flag| (heading.title, flag)));
        let args = flags.map(|(title, flag)| describe(flag, help(flag, &schema, TRAINS)).help_heading(title));
        let foreign = alias::flags().filter(|_| TRAINS).map(|(long, alias)| describe_foreign(long, alias));
        command.args(own_args()).args(args.collect::<Vec<_>>()).args(foreign)
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
        let is_given = |alias: &Alias| TRAINS && matches.value_source(alias.name) == Some(ValueSource::CommandLine);
        let foreign = |(long, alias): (String, &Alias)| Setting {
            key: alias.name.into(),
            value: if alias.takes_value {
                matches.get_one(alias.name).cloned().unwrap_or_default()
            } else {
                String::new()
            },
            flag: format!("--{long}"),
        };
        let foreign = alias::flags().filter(|(_, alias)| is_given(alias)).map(foreign);
        let own = headings(TRAINS).flat_map(|heading| heading.flags).filter(given).map(setting);
        let request = Request {
            saved: None,
            weights: None,
            files: all(matches, "config"),
            config_dirs: all(matches, "config-dir"),
            environment: Vec::new(),
            arguments: all(matches, "arguments"),
            flags: foreign.chain(own).collect(),
            complaints: Vec::new(),
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
            "A setting such as optim.beta1=0.8, or a group such as trainer=ddp, data=cifar100, experiment=quickstart",
        ),
        path("config", "FILE").help("TOML file with any of the keys; may be repeated, the last one wins"),
        path("config-dir", "DIR").help("Directory whose GROUP/NAME.toml files add to the groups; may be repeated"),
    ]
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
        Takes::Nothing(_) => arg
            .action(ArgAction::SetTrue)
            .overrides_with_all(flag::all().filter(|other| other.key == flag.key).map(|other| other.long)),
    }
}

/// The option for a flag of another trainer, which is accepted but hidden.
fn describe_foreign(long: String, alias: &'static Alias) -> Arg {
    let arg = Arg::new(alias.name).long(long).hide(true).overrides_with(alias.name);
    if alias.takes_value { arg.value_name("VALUE") } else { arg.action(ArgAction::SetTrue) }
}

/// The meaning of the flag's key, its choices and its default.
fn help(flag: &Flag, schema: &Schema, trains: bool) -> String {
    let evaluated = EVALUATED.iter().find(|(key, _)| !trains && *key == flag.key).map(|(_, meaning)| *meaning);
    let meaning = evaluated.unwrap_or_else(|| schema.meaning(flag.key));
    let default = schema.default(flag.key).map(plain).unwrap_or_default();
    let default = match default.trim_matches(['[', ']']) {
        "" | "false" => String::new(),
        default => format!(" [default: {default}]"),
    };
    match flag.takes {
        Takes::Nothing(false) => format!("Do not {}", lower_first(meaning)),
        Takes::Choice => format!("{meaning} [choices: {}]{default}", schema.choices(flag.key).join(", ")),
        Takes::Optional(_, missing) => format!("{meaning} --{} alone means {missing}.", flag.long),
        _ => format!("{meaning}{default}"),
    }
}

fn lower_first(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
