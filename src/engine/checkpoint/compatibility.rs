//! Compares the configuration of a resumed run with that of its checkpoint.
//!
//! The trainer decides which keys must agree, the user whether to resume nevertheless (`--force-config`).

use std::collections::BTreeMap;

use toml::{Table, Value};

/// The differences of two configurations in TOML, one line per key: `data.source: saved "cifar10", now "folder"`.
///
/// Only the keys in `binding`, and keys below them, are compared, in that order. Invalid TOML is a difference too.
pub fn differences(saved: &str, current: &str, binding: &[&str]) -> Vec<String> {
    let (saved, current) = match (parse(saved, "saved"), parse(current, "current")) {
        (Ok(saved), Ok(current)) => (saved, current),
        (saved, current) => return saved.err().into_iter().chain(current.err()).collect(),
    };
    binding.iter().flat_map(|key| compare(&below(&saved, key), &below(&current, key))).collect()
}

fn parse(text: &str, which: &str) -> Result<Table, String> {
    text.parse().map_err(|e: toml::de::Error| format!("the {which} configuration is not TOML: {}", e.message()))
}

/// The values at and below a dotted key, by their full keys.
fn below(document: &Table, key: &str) -> BTreeMap<String, String> {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let mut leaves = BTreeMap::new();
    match (document.get(first), rest) {
        (Some(Value::Table(table)), Some(rest)) => leaves.extend(below(table, rest)),
        (Some(Value::Table(table)), None) => leaves.extend(table.keys().flat_map(|inner| below(table, inner))),
        (Some(value), None) => return BTreeMap::from([(first.into(), value.to_string())]),
        _ => {}
    }
    leaves.into_iter().map(|(inner, value)| (format!("{first}.{inner}"), value)).collect()
}

fn compare(saved: &BTreeMap<String, String>, current: &BTreeMap<String, String>) -> Vec<String> {
    let value = |side: &BTreeMap<String, String>, key| side.get(key).cloned().unwrap_or_else(|| "absent".into());
    let added = current.keys().filter(|key| !saved.contains_key(*key));
    let differing = saved.keys().chain(added).filter(|key| saved.get(*key) != current.get(*key));
    differing.map(|key| format!("{key}: saved {}, now {}", value(saved, key), value(current, key))).collect()
}
