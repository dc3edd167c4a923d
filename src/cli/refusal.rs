//! Reports all errors of a command line at once, one line each, in Kiln's words.
//!
//! clap stops at the first error. Here the wrong argument is removed and the rest is parsed again, until there is no
//! error or nothing can be removed. [`crate::config::resolve`] checks the settings and adds its errors to these.

use std::error::Error as _;
use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches};

use crate::config::schema::enumerate;
use crate::config::suggestion::{self, Meant};
use crate::error::{Error, shown};

/// Why arguments cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// They ask for the help or the version, which clap prints.
    #[error("{0}")]
    Shown(clap::Error),
    /// They are wrong.
    #[error(transparent)]
    Wrong(#[from] Error),
}

/// Parses `arguments` as far as they are correct; returns the errors of the others too.
pub(super) fn read(
    command: &mut clap::Command,
    mut arguments: Vec<OsString>,
) -> Result<(ArgMatches, Vec<String>), Refusal> {
    let (mut lines, mut blamed) = (Vec::new(), Vec::new());
    loop {
        let error = match command.try_get_matches_from_mut(&arguments) {
            Ok(matches) => return Ok((matches, lines)),
            Err(error) if !error.use_stderr() => return Err(Refusal::Shown(error)),
            Err(error) => error,
        };
        if error.kind() == ErrorKind::InvalidUtf8 {
            let words = arguments.iter().filter(|word| word.to_str().is_none());
            lines.extend(words.map(|word| format!("'{}' is not UTF-8, as settings must be; rename it", shown(word))));
            return Err(Error::Usage(lines).into());
        }
        let fault = Fault::new(command, &arguments, &error);
        lines.extend(fault.lines(&mut blamed));
        if !fault.take_out(&mut arguments) {
            return Err(Error::Usage(lines).into());
        }
    }
}

/// The hint for a path where a command has no place for one.
pub(super) fn as_checkpoint(path: &str) -> String {
    format!("a model is given as --checkpoint {path}")
}

/// A parser of a whole number in a range; its error is the rule.
pub(super) fn whole<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match range.end() {
            &u64::MAX => format!("a whole number, at least {}", range.start()),
            most => format!("a whole number, {} to {most}", range.start()),
        })
    }
}

/// One error of clap.
struct Fault<'a> {
    error: &'a clap::Error,
    /// The command, and how it is typed.
    command: &'a clap::Command,
    path: String,
    /// The index of the wrong argument.
    at: Option<usize>,
    /// Its name as it is typed.
    typed: String,
    /// The next argument, if it is not an option.
    next: Option<String>,
    /// The value after `=` in it.
    joined: Option<String>,
}

impl<'a> Fault<'a> {
    fn new(mut command: &'a clap::Command, arguments: &[OsString], error: &'a clap::Error) -> Self {
        let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
        let mut path = "train".to_string();
        let mut start = 1;
        while let Some(inner) = words.get(start).and_then(|word| command.find_subcommand(word.as_ref())) {
            path = format!("{path} {}", inner.get_name());
            (command, start) = (inner, start + 1);
        }
        let mut fault = Self { error, command, path, at: None, typed: String::new(), next: None, joined: None };
        let name = fault.name();
        let names = fault.arg().map_or_else(|| vec![name.clone()], names);
        let [value, whole] = [ContextKind::InvalidValue, ContextKind::InvalidArg].map(|kind| fault.text(kind));
        let is_it = |word: &str| {
            let option = names.iter().any(|name| word == name || word.starts_with(&format!("{name}=")));
            // Letters behind one dash are options of one letter to clap.
            let is_cluster = name.len() == 2 && !word.starts_with("--") && word.starts_with(&name);
            option || is_cluster || (!name.starts_with('-') && [&name, &value, &whole].contains(&&word.to_string()))
        };
        let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
        fault.at = (start.min(end)..end).find(|at| is_it(&words[*at]));
        let Some(at) = fault.at else { return fault };
        fault.typed = words[at].split('=').next().unwrap_or_default().to_string();
        fault.joined = words[at].split_once('=').map(|(_, value)| value.to_string());
        let next = words[..end].get(at + 1).filter(|word| fault.joined.is_none() && !word.starts_with('-'));
        fault.next = next.map(ToString::to_string);
        fault
    }

    /// A text in clap's error; empty without one.
    fn text(&self, kind: ContextKind) -> String {
        match self.error.get(kind) {
            Some(ContextValue::String(text)) => text.clone(),
            _ => String::new(),
        }
    }

    /// Texts in clap's error.
    fn texts(&self, kind: ContextKind) -> Vec<String> {
        match self.error.get(kind) {
            Some(ContextValue::Strings(texts)) => texts.clone(),
            _ => Vec::new(),
        }
    }

    /// The argument's name: `--to` for what clap calls `--to <FORMAT>`.
    fn name(&self) -> String {
        let shown = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand].map(|kind| self.text(kind)).concat();
        shown.split([' ', '=', '[']).next().unwrap_or_default().to_string()
    }

    /// The option of this name.
    fn arg(&self) -> Option<&'a Arg> {
        let name = self.name();
        self.command.get_arguments().find(|arg| names(arg).contains(&name))
    }

    /// The lines for this error; `blamed` are the arguments of earlier errors, which are not reported as missing again.
    fn lines(&self, blamed: &mut Vec<String>) -> Vec<String> {
        let (name, value, path) = (self.name(), self.text(ContextKind::InvalidValue), &self.path);
        let more = format!("'{path} --help' says more");
        let line = match self.error.kind() {
            ErrorKind::MissingRequiredArgument => {
                let missing = self.texts(ContextKind::InvalidArg).into_iter();
                let missing = missing.filter(|arg| !blamed.iter().any(|name| arg.split(' ').any(|word| word == name)));
                return missing
                    .map(|arg| format!("{path} must have {}; {more}", arg.replace(['<', '>'], "")))
                    .collect();
            }
            ErrorKind::UnknownArgument if name.starts_with("--") => {
                let (hint, meant) = self.hint();
                blamed.extend(meant);
                format!("unknown option '{name}'; {hint}")
            }
            // clap names only the first letter of what it takes for short options.
            ErrorKind::UnknownArgument if name.starts_with('-') => {
                let (typed, option) = (self.typed.as_str(), format!("-{}", self.typed));
                let known = self.command.get_arguments().any(|arg| names(arg).contains(&option));
                let hint = if known { format!("did you mean '{option}'?") } else { more };
                format!("unknown option '{typed}'; {hint}")
            }
            ErrorKind::UnknownArgument => {
                let word = self.text(ContextKind::InvalidArg);
                let takes_model = self.command.get_arguments().any(|arg| arg.get_long() == Some("checkpoint"));
                let hint = if self.trains() {
                    self.behind_dashes(&word)
                } else if takes_model {
                    as_checkpoint(&word)
                } else {
                    more
                };
                format!("unknown argument '{word}'; {hint}")
            }
            ErrorKind::InvalidSubcommand | ErrorKind::MissingSubcommand => return vec![self.which_command()],
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => return vec![self.which_command()],
            ErrorKind::InvalidValue if value.is_empty() => {
                let example = self.arg().map_or_else(|| name.clone(), |arg| arg.to_string().replace(['<', '>'], ""));
                format!("{name} must have a value, as in {example}; {more}")
            }
            ErrorKind::InvalidValue => {
                let choices = enumerate(&self.texts(ContextKind::ValidValue), "or");
                format!("{} must be one of {choices}, got '{value}'; {more}", name.trim_matches(['<', '>']))
            }
            ErrorKind::ValueValidation => {
                let rule = self.error.source().map(ToString::to_string).unwrap_or_default();
                format!("{name} must be {rule}, got '{value}'; {more}")
            }
            ErrorKind::TooManyValues => format!("{name} must have no value, got '{value}'; leave the value out"),
            ErrorKind::ArgumentConflict => {
                let others = [vec![self.text(ContextKind::PriorArg)], self.texts(ContextKind::PriorArg)].concat();
                let others = others.iter().filter_map(|other| other.split([' ', '=', '[']).next());
                match others.into_iter().find(|other| !other.is_empty() && *other != name) {
                    Some(other) => format!("{name} does not go with {other}; leave one of them out"),
                    None => format!("{name} is given twice; give it once"),
                }
            }
            _ => self.error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_string(),
        };
        blamed.push(name);
        vec![line]
    }

    /// The remedy for an unknown option, and the option that was probably meant.
    fn hint(&self) -> (String, Option<String>) {
        let visible = self.command.get_arguments().filter(|arg| !arg.is_hide_set());
        let known: Vec<String> = visible.flat_map(names).collect();
        let takes_settings =
            self.command.get_positionals().any(|arg| arg.get_id() == "arguments" && !arg.is_last_set());
        let value = self.joined.as_deref().or(self.next.as_deref());
        match suggestion::for_option(&self.name(), value, &known, takes_settings) {
            Meant::Option(name, hint) => (hint, Some(name)),
            Meant::Setting(hint) => (hint, None),
            Meant::Training if self.trains() => (self.behind_dashes(&self.name()), None),
            Meant::Training => ("it is an option for training only; leave it out".into(), None),
            Meant::Nothing => (format!("'{} --help' lists all options", self.path), None),
        }
    }

    /// Whether the command takes arguments for training after `--`.
    fn trains(&self) -> bool {
        self.command.get_arguments().any(|arg| arg.is_last_set())
    }

    fn behind_dashes(&self, word: &str) -> String {
        format!("arguments for training come after '--', as in '{} -- {word}'", self.path)
    }

    /// The error for a command that is missing or unknown.
    fn which_command(&self) -> String {
        let all: Vec<&str> = self.command.get_subcommands().map(clap::Command::get_name).collect();
        let (path, known) = (&self.path, enumerate(&all, "or"));
        match self.name() {
            none if none.is_empty() => format!("{path} must have a command: {known}"),
            name => format!("unknown command '{name}'; {path} must have one of {known}"),
        }
    }

    /// Removes the wrong argument and its value; false if it is not there, or if the rest cannot be parsed without it.
    fn take_out(&self, arguments: &mut Vec<OsString>) -> bool {
        let Some(at) = self.at.filter(|_| self.error.kind() != ErrorKind::InvalidSubcommand) else { return false };
        arguments.remove(at);
        let takes_value = match self.arg() {
            Some(arg) => arg.get_action().takes_values(),
            None => self.takes_next(),
        };
        if takes_value && self.next.is_some() && self.name().starts_with('-') {
            arguments.remove(at);
        }
        true
    }

    /// Whether the word after an unknown option is probably its value: if the option that was meant has one, or if the
    /// word is not a setting where only settings are allowed.
    fn takes_next(&self) -> bool {
        let meant = self.hint().1;
        let known = meant.and_then(|meant| self.command.get_arguments().find(|arg| names(arg).contains(&meant)));
        match known {
            Some(arg) => arg.get_action().takes_values(),
            None => {
                self.command.get_positionals().all(|arg| ["arguments", "settings"].contains(&arg.get_id().as_str()))
                    && !self.next.as_deref().is_some_and(|next| next.contains('='))
            }
        }
    }
}

/// How an option can be typed.
fn names(arg: &Arg) -> Vec<String> {
    let dashed = |name: &dyn Display| format!("--{name}");
    let longs = arg.get_long().into_iter().chain(arg.get_all_aliases().into_iter().flatten());
    longs.map(|name| dashed(&name)).collect()
}
