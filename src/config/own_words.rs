//! A command line in Kiln's own words: every setting that it takes to get a configuration.

use super::request::Request;
use super::resolve::assembled;
use super::schema::{self, typed};
use super::{Config, flag};

/// Most rounds until no key differs: a setting may change the default of others.
const ROUNDS: usize = 8;

/// Arguments of `train` that mean `config` in the environment of `request`.
pub(super) fn line(config: &Config, request: &Request) -> String {
    let keys: Vec<String> = schema::keys().collect();
    let meant = table(config);
    let got = |settings: &[(&str, String)]| {
        let arguments = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let Request { weights, saved, environment, .. } = request.clone();
        let typed = Request { weights, saved, environment, arguments, ..Request::default() };
        assembled(&typed).map(|(merged, ..)| table(&merged.config)).unwrap_or_default()
    };
    let mut settings: Vec<(&str, String)> = Vec::new();
    for _ in 0..ROUNDS {
        let got = got(&settings);
        let differs = |key: &&String| value(&meant, key) != value(&got, key);
        let missing: Vec<_> = keys.iter().filter(differs).map(|key| (&key[..], value(&meant, key))).collect();
        if missing.is_empty() {
            break;
        }
        settings.retain(|(key, _)| missing.iter().all(|(other, _)| key != other));
        settings.extend(missing);
    }
    // Others may have made some unnecessary.
    for key in &keys {
        let others: Vec<_> = settings.iter().filter(|(other, _)| other != key).cloned().collect();
        if others.len() < settings.len() && got(&others) == meant {
            settings = others;
        }
    }
    let place = |key: &str| flag::all().position(|flag| flag.key == key).unwrap_or(usize::MAX);
    settings.sort_by_key(|(key, _)| place(key));
    let words = settings.iter().map(|(key, value)| quoted(&flag::setting(key, value)));
    words.collect::<Vec<_>>().join(" ")
}

fn table(config: &Config) -> toml::Table {
    toml::Table::try_from(config).expect("the configuration is plain TOML values")
}

/// The value of `key` as it is typed.
fn value(values: &toml::Table, key: &str) -> String {
    let found = key.split_once('.').and_then(|(section, name)| values.get(section)?.get(name));
    found.map(typed).unwrap_or_default()
}

/// The argument as a shell takes it.
fn quoted(setting: &str) -> String {
    match setting.split_once(' ') {
        Some((option, value)) if option.starts_with("--") => format!("{option} {}", shell_word(value)),
        _ => shell_word(setting),
    }
}

/// A word as a shell takes it: in quotes unless it is plain.
pub(crate) fn shell_word(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=./:,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
