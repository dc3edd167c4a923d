//! What the user may have meant.
//!
//! Guesses end a complaint, they never change a value: a run on a guess would be a run nobody asked for.

use strsim::damerau_levenshtein;
use toml::Value;

use super::schema::{Schema, plain};
use super::{alias, flag};

/// Names from other trainers that are no spelling of a key's value, and the keys that come closest. Those that are
/// stand in [`super::alias`].
const FAMILIAR: &[(&str, &str)] = &[
    ("amp", "run.precision"),
    ("ckpt_path", "checkpoint.resume"),
    ("dataset", "data.source"),
    ("devices", "parallel.world_size"),
    ("gradient_clip_val", "optim.clip_grad_norm"),
    ("mixed_precision", "run.precision"),
    ("model_ema", "optim.ema_decay"),
    ("num_gpus", "parallel.world_size"),
    ("num_replicas", "parallel.world_size"),
    ("opt", "optim.optimizer"),
    ("optimizer_name", "optim.optimizer"),
    ("scheduler", "schedule.kind"),
];

/// The remedy for a key that does not exist.
pub fn for_key(key: &str, schema: &Schema) -> String {
    match nearest_key(key, schema) {
        Some(meant) => format!("did you mean '{meant}'?"),
        None => "'train config' prints every key".into(),
    }
}

/// The remedy for a value that `key` cannot hold: the choice that is spelled alike, or else the default.
pub fn for_value(key: &str, value: &Value, schema: &Schema) -> String {
    match (key, plain(value).as_str()) {
        ("parallel.backend", engine @ ("gloo" | "nccl")) => {
            return format!("what carries numbers between processes is --dist-backend {engine}");
        }
        ("parallel.nnodes", limits) if limits.contains(':') => {
            return format!("processes that come and go are --elastic {limits}");
        }
        _ => {}
    }
    match nearest(&plain(value), schema.choices(key)) {
        Some(meant) => format!("did you mean '{meant}', as in {}?", flag::setting(key, &meant)),
        None => example(key, schema),
    }
}

/// A setting of `key` that works.
pub fn example(key: &str, schema: &Schema) -> String {
    let default = schema.default(key).map(|value| match value {
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        value => plain(value),
    });
    match default.unwrap_or_default() {
        empty if empty.is_empty() => "leave it out for the default".into(),
        default => format!("the default is {}", flag::setting(key, &default)),
    }
}

/// The remedy for `word=text`, where `word` names no section; `groups` are the words that would be right.
pub fn for_bare_word(word: &str, text: &str, groups: &[String], schema: &Schema) -> String {
    let meant = nearest_key(word, schema);
    match (nearest(word, groups.iter().cloned()), meant) {
        (Some(group), None) => format!("did you mean '{group}={text}'?"),
        (_, Some(key)) if flag::of_key(&key).is_some() => {
            format!("did you mean '{key}={text}' or '{}'?", flag::setting(&key, text))
        }
        (_, Some(key)) => format!("did you mean '{key}={text}'?"),
        (None, None) => "keys read like optim.learning_rate=0.1; 'train config' prints every key".into(),
    }
}

/// The key that is closest to `wrong`: the same name in another section or as a flag, a name from another trainer, or
/// a name with a few letters wrong.
fn nearest_key(wrong: &str, schema: &Schema) -> Option<String> {
    let wrong = wrong.to_lowercase().replace('-', "_");
    let name = last(&wrong);
    let elsewhere = || schema.keys().find(|key| last(key) == name);
    let is_called = |long: &str| long.replace('-', "_") == name;
    let flag = || flag::all().find(|flag| is_called(flag.long) || flag.aliases.iter().any(|long| is_called(long)));
    let familiar = || FAMILIAR.iter().find(|(known, _)| *known == name);
    elsewhere()
        .or_else(|| flag().map(|flag| flag.key.to_string()))
        .or_else(|| familiar().map(|(_, key)| key.to_string()))
        .or_else(|| alias::key_of(name).map(String::from))
        .or_else(|| nearest(&wrong, schema.keys()))
        .or_else(|| schema.keys().filter(|key| is_near(name, last(key))).min_by_key(|key| distance(name, last(key))))
}

/// The candidate with the fewest letters to change, if they are few.
pub fn nearest(word: &str, candidates: impl IntoIterator<Item = String>) -> Option<String> {
    candidates.into_iter().filter(|candidate| is_near(word, candidate)).min_by_key(|near| distance(word, near))
}

fn is_near(word: &str, candidate: &str) -> bool {
    distance(word, candidate) <= (candidate.chars().count() / 3).max(1)
}

fn distance(word: &str, candidate: &str) -> usize {
    damerau_levenshtein(word, candidate)
}

fn last(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}
