//! Errors of a command line: all unknown options at once, each with a hint, else clap's first error.
//!
//! [`crate::config::resolve`] checks the settings and appends its errors.

use std::error::Error;
use std::ffi::OsString;
use std::ops::RangeInclusive;

use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, Command};

use crate::config::suggestion::{self, Meant};

/// The command that `words`, which begin with the program, are for.
pub(super) fn innermost<'a>(command: &'a Command, words: &[OsString]) -> &'a Command {
    let inner = words.get(1).and_then(|word| command.find_subcommand(word));
    inner.map_or(command, |inner| innermost(inner, &words[1..]))
}

/// The `words` without options that `command` does not have, and a line for each of those.
pub(super) fn without_unknown(command: &Command, words: Vec<OsString>) -> (Vec<OsString>, Vec<String>) {
    let (mut kept, mut lines) = (Vec::new(), Vec::new());
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let typed = word.to_string_lossy().into_owned();
        let (name, joined) = typed.split_once('=').map_or((&typed[..], None), |(name, value)| (name, Some(value)));
        if name.len() < 2 || !name.starts_with('-') || name == "--" || find(command, name).is_some() {
            kept.push(word);
            if name == "--" {
                kept.extend(words.by_ref());
            }
            continue;
        }
        let next = words.peek().map(|next| next.to_string_lossy().into_owned());
        let next = next.filter(|next| joined.is_none() && !next.starts_with('-'));
        let (hint, takes_value) = hint(command, name, joined.or(next.as_deref()));
        lines.push(format!("unknown option '{name}'; {hint}"));
        let is_number = |word: &OsString| word.to_string_lossy().parse::<f64>().is_ok();
        if let Some(value) = words.next_if(|_| next.is_some() && takes_value)
            && is_number(&value)
        {
            while words.next_if(is_number).is_some() {}
        }
    }
    (kept, lines)
}

/// The remedy for an unknown option that is followed by `value`, and whether it probably takes this value: if the
/// option that was meant takes one, or if `value` is not a setting and the command takes only settings.
fn hint(command: &Command, name: &str, value: Option<&str>) -> (String, bool) {
    let known: Vec<String> = command.get_arguments().filter(|arg| !arg.is_hide_set()).flat_map(longs).collect();
    let is_settings = |arg: &Arg| ["arguments", "settings"].contains(&arg.get_id().as_str());
    let takes_settings = command.get_positionals().any(|arg| arg.get_id() == "arguments" && !arg.is_last_set());
    let is_value = command.get_positionals().all(is_settings) && !value.is_some_and(|value| value.contains('='));
    match suggestion::for_option(name, value, &known, takes_settings) {
        Meant::Option(meant, hint) => (
            hint,
            find(command, &meant).map_or(is_value, |arg| arg.get_num_args().is_some_and(|count| count.takes_values())),
        ),
        Meant::Setting(hint) => (hint, is_value),
        Meant::Training if trains(command) => (behind_dashes(command, name), is_value),
        Meant::Training => ("it is an option for training only; remove it".into(), is_value),
        Meant::Nothing => (format!("'{} --help' lists all options", path(command)), is_value),
    }
}

/// Clap's error on one line.
pub(super) fn line(command: &Command, error: &clap::Error) -> String {
    let mut text = error.to_string();
    if error.kind() == ErrorKind::ValueValidation
        && let Some(rule) = error.source()
    {
        text = text.replacen(&format!("': {rule}"), &format!("': must be {rule}"), 1);
    }
    let is_said = |part: &&str| !["Usage:", "For more information"].iter().any(|start| part.starts_with(start));
    let parts = text.trim_start_matches("error: ").split("\n\n").take_while(is_said);
    let parts: Vec<_> = parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let word = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let remedy = match error.kind() {
        ErrorKind::UnknownArgument if trains(command) => behind_dashes(command, &word),
        ErrorKind::UnknownArgument if find(command, "--checkpoint").is_some() => as_checkpoint(&word),
        _ => format!("see '{} --help'", path(command)),
    };
    format!("{}; {remedy}", parts.join("; "))
}

/// The hint for a path where a command has no place for one.
pub(super) fn as_checkpoint(path: &str) -> String {
    format!("give a model as --checkpoint {path}")
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

/// How the command is typed.
fn path(command: &Command) -> &str {
    command.get_bin_name().unwrap_or("train")
}

/// Whether the command takes arguments for training after `--`.
fn trains(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.is_last_set())
}

fn behind_dashes(command: &Command, word: &str) -> String {
    format!("arguments for training come after '--', as in '{} -- {word}'", path(command))
}

fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let is_short = |arg: &Arg| arg.get_short().is_some_and(|short| name == format!("-{short}"));
    command.get_arguments().find(|arg| is_short(arg) || longs(arg).any(|long| long == name))
}

fn longs(arg: &Arg) -> impl Iterator<Item = String> {
    let aliases = arg.get_all_aliases().into_iter().flatten();
    arg.get_long().into_iter().chain(aliases).map(|name| format!("--{name}"))
}
