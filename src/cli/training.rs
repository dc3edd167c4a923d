//! Arguments for training, after the `--` of a command that trains.

use std::ffi::OsString;

use clap::{Arg, ArgMatches, Args, FromArgMatches, value_parser};

use super::{Cli, Command};
use crate::config::Request;

/// Arguments after `--`, and what they ask for.
#[derive(Debug)]
pub struct Training {
    pub arguments: Vec<OsString>,
    pub request: Request,
}

impl Args for Training {
    fn augment_args(command: clap::Command) -> clap::Command {
        let arguments = Arg::new("arguments").last(true).num_args(1..).value_parser(value_parser!(OsString));
        let help = "Flags and settings of the training, as for train itself";
        command.arg(arguments.value_name("ARGUMENTS").help(help))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Training {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let arguments: Vec<OsString> = matches.get_many("arguments").into_iter().flatten().cloned().collect();
        let wrong = |complaints| Request { complaints, ..Request::default() };
        let request = match Cli::try_parse_from(std::iter::once("train".into()).chain(arguments.iter().cloned())) {
            Ok(Command::Train(options)) => options.request,
            Ok(Command::Help(help)) => return Err(help.0),
            Ok(_) => {
                let rule = "after '--' come arguments for training, not another command; remove the command";
                wrong(vec![rule.into()])
            }
            Err(error) => wrong(error.to_string().lines().map(String::from).collect()),
        };
        Ok(Self { arguments, request })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
