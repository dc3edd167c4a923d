//! What a resumed run must share with the one it continues.
//!
//! Only the comparison is here. Which keys bind a run is for the trainer to say, whether to go on regardless for the
//! person (`--force-config`).

use std::collections::BTreeMap;

use toml::{Table, Value};

/// How two configurations in TOML differ, one line for each key: `data.source: saved "cifar10", now "folder"`.
///
/// Only keys named in `binding`, and keys below them, count; they come in that order. A document that is not TOML is
/// a difference too.
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

/// The values at a dotted key and below it, by their full keys.
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
