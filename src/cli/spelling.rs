//! The spellings of an argument, brought to the one that clap is told about.

use std::ffi::{OsStr, OsString};

use crate::parallel::Elastic;

/// Writes arguments in the one way that clap is told about: options in kebab-case, as in `--batch_size 8`, and with `=`
/// before a value that clap would not take from the next argument, as in `--resume PATH` and `--lr -1e-3`.
pub(super) fn normalize(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
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
