//! Every key of the configuration with its type, choices and meaning.
//!
//! Nothing is listed by hand: keys and types come from [`Config::default`], choices from serde, meanings from the
//! comments of `config/default.toml`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::LazyLock;

use toml::{Table, Value};

use super::range::{self, Range};
use super::{Config, DEFAULT_TOML};

/// A value that no key with choices accepts: serde's error then lists the choices.
const NONSENSE: &str = "?";

static DEFAULTS: LazyLock<Table> =
    LazyLock::new(|| Table::try_from(Config::default()).expect("the defaults are plain TOML values"));
static MEANINGS: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| meanings(DEFAULT_TOML));

/// Every key as `section.field`, sorted.
pub fn keys() -> impl Iterator<Item = String> {
    let sections = DEFAULTS.iter().filter_map(|(section, fields)| Some((section, fields.as_table()?)));
    sections.flat_map(|(section, fields)| fields.keys().map(move |name| format!("{section}.{name}")))
}

/// Whether `name` is a section such as `optim`.
pub fn is_section(name: &str) -> bool {
    DEFAULTS.contains_key(name)
}

/// The default of `key`; `None` if there is no such key.
pub fn default(key: &str) -> Option<&'static Value> {
    let (section, name) = key.split_once('.')?;
    DEFAULTS.get(section)?.get(name)
}

/// The comment of `key` in `config/default.toml`, on one line.
pub fn meaning(key: &str) -> &'static str {
    MEANINGS.get(key).map_or("", String::as_str)
}

/// The choices of `key` in the order of their enum; empty if it has none.
pub fn choices(key: &str) -> Vec<String> {
    let answer = refusal(key, &NONSENSE.into()).unwrap_or_default();
    match answer.split_once("unknown variant `?`, expected ") {
        Some((_, list)) => list.split('`').skip(1).step_by(2).map(String::from).collect(),
        None => Vec::new(),
    }
}

/// Parses `text` as a value of `key`. Text of another type becomes a string, which [`rule`] refuses.
pub fn parse(key: &str, text: &str) -> Value {
    let toml = |text: &str| text.parse::<Value>().ok();
    let parsed = match default(key) {
        Some(Value::String(_)) => toml(text).filter(Value::is_str),
        Some(Value::Array(_)) if !text.trim_start().starts_with('[') => toml(&format!("[{text}]")),
        Some(Value::Float(_)) => text.trim().parse().ok().map(Value::Float),
        _ => toml(text.trim()),
    };
    parsed.unwrap_or_else(|| Value::String(text.into()))
}

/// The rule that `value` breaks by its type or spelling, as in "'key' must be *a whole number, at least 1*"; `None`
/// if it is valid.
pub fn rule(key: &str, value: &Value) -> Option<String> {
    let answer = refusal(key, value)?;
    let choices = choices(key);
    Some(match default(key)? {
        Value::Integer(_) if plain(value).parse::<u128>().is_ok_and(|number| number > i64::MAX as u128) => {
            format!("a whole number, at most {}", i64::MAX)
        }
        Value::Integer(_) => format!("a whole number, {}", range::of(key).unwrap_or(Range::AtLeast(0.0))),
        Value::Float(_) => range::of(key).map_or("a number".into(), |range| format!("a number, {range}")),
        Value::Boolean(_) => "true or false".into(),
        Value::Array(_) => "a list of whole numbers, as in 0,1".into(),
        _ if !choices.is_empty() => format!("one of {}", enumerate(&choices, "or")),
        _ if value.is_str() => answer,
        _ => refusal(key, &NONSENSE.into()).unwrap_or("text in quotes".into()),
    })
}

/// Serde's error for `value` as the value of `key`, if any.
fn refusal(key: &str, value: &Value) -> Option<String> {
    let (section, name) = key.split_once('.')?;
    let alone = |name: &str, value: Value| Table::from_iter([(name.to_string(), value)]);
    let probe = alone(section, alone(name, value.clone()).into());
    probe.try_into::<Config>().err().map(|error| error.message().to_string())
}

/// A value as the user writes it, strings without quotes.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Float(number) => number.to_string(),
        _ => value.to_string(),
    }
}

/// The same as it is typed: lists without brackets.
pub fn typed(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        _ => plain(value),
    }
}

/// The items as a phrase: `a, b or c`.
pub fn enumerate(items: &[impl Display], conjunction: &str) -> String {
    let mut phrase = String::new();
    for (index, item) in items.iter().enumerate() {
        let separator = match items.len() - index {
            _ if index == 0 => String::new(),
            1 => format!(" {conjunction} "),
            _ => ", ".into(),
        };
        phrase.push_str(&format!("{separator}{item}"));
    }
    phrase
}

/// The comments directly above each key, joined to one line.
fn meanings(toml: &str) -> BTreeMap<String, String> {
    let mut meanings = BTreeMap::new();
    let (mut section, mut comment) = ("", Vec::new());
    for line in toml.lines() {
        if let Some(words) = line.strip_prefix('#') {
            comment.push(words.trim());
        } else if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            comment.clear();
        } else {
            if let Some((name, _)) = line.split_once('=') {
                meanings.insert(format!("{section}.{}", name.trim()), comment.join(" "));
            }
            comment.clear();
        }
    }
    meanings
}
