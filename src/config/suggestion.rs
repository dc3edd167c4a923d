//! Suggestions for unknown names and values. They appear in error messages only and never change a value.

use strsim::damerau_levenshtein as distance;
use toml::Value;

use super::schema::{self, plain, typed};
use super::{alias, flag, group, range, removed};

/// Names of other trainers that are not in [`super::alias`], and the keys that come closest.
const FAMILIAR: &[(&str, &str)] = &[
    ("amp", "run.precision"),
    ("dataset", "data.source"),
    ("mixed_precision", "run.precision"),
    ("model_ema", "optim.ema_decay"),
    ("num_gpus", "parallel.world_size"),
    ("num_replicas", "parallel.world_size"),
    ("opt", "optim.optimizer"),
    ("optimizer_name", "optim.optimizer"),
    ("scheduler", "schedule.kind"),
];

/// The remedy for a key that does not exist.
pub fn for_key(key: &str) -> String {
    match nearest_key(key) {
        _ if let Some(remedy) = removed::remedy(key) => remedy.into(),
        Some(meant) => format!("did you mean '{meant}'?"),
        None => "'train config' prints every key".into(),
    }
}

/// The remedy for an invalid value of `key`: the choice with a similar spelling, else the default.
pub fn for_value(key: &str, value: &Value) -> String {
    match (key, plain(value).as_str()) {
        ("parallel.backend", engine @ ("gloo" | "nccl")) => {
            return format!("for communication between processes use --dist-backend {engine}");
        }
        ("parallel.strategy", mirrored) if mirrored.to_lowercase().contains("mirrored") => {
            return "for mirrored replicas use --strategy ddp".into();
        }
        ("data.source", path) if path.contains(['/', '.']) => {
            return format!("for a directory of images use --data folder --data-dir {path}");
        }
        ("parallel.nnodes", limits) if limits.contains(':') => {
            return format!("for an elastic run use --elastic {limits}");
        }
        _ => {}
    }
    match whole(key, value).or_else(|| nearest(&plain(value), schema::choices(key))) {
        Some(meant) => format!("did you mean '{meant}', as in {}?", flag::setting(key, &meant)),
        None => example(key),
    }
}

/// The whole number that is meant by `1e3`, `3.0` or `"3"`, if `key` takes it.
fn whole(key: &str, value: &Value) -> Option<String> {
    let number: f64 = plain(value).trim().parse().ok().filter(|number: &f64| number.fract() == 0.0)?;
    let meant = Value::Integer(number as i64);
    let is_taken = schema::default(key).is_some_and(Value::is_integer)
        && schema::rule(key, &meant).is_none()
        && range::of(key).is_none_or(|range| range.contains(number));
    (is_taken && number.abs() < 1e15).then(|| plain(&meant))
}

/// A valid setting of `key`.
pub fn example(key: &str) -> String {
    match schema::default(key).map(typed).unwrap_or_default() {
        empty if empty.is_empty() => "remove it for the default".into(),
        default => format!("for example {}", flag::setting(key, &default)),
    }
}

/// The likely meaning of an option that a command does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meant {
    Option(String, String),
    /// A key without an option; with the remedy.
    Setting(String),
    /// An option for training, which the command does not do.
    Training,
    Nothing,
}

/// The meaning of the option `name`, which is followed by `value`; `known` are the options of the command.
pub fn for_option(name: &str, value: Option<&str>, known: &[String], takes_settings: bool) -> Meant {
    if let Some(remedy) = removed::remedy(name).or_else(|| alias::find(name)?.1.refusal()) {
        return Meant::Setting(remedy.into());
    }
    let bare = name.trim_start_matches('-');
    let long = |flag: &flag::Flag| format!("--{}", flag.long);
    let is_taken = known.contains(&format!("--{bare}"));
    if !is_taken && (flag::find(bare).is_some() || alias::flags().any(|(long, _)| long == bare)) {
        return Meant::Training;
    }
    if takes_settings && group::groups(&[]).iter().any(|group| group == bare) {
        return Meant::Setting(format!("did you mean '{bare}={}'?", value.unwrap_or("NAME")));
    }
    let key = nearest_key(bare).filter(|_| takes_settings);
    let of_key = || key.as_deref().and_then(flag::of_key).map(long).filter(|option| known.contains(option));
    let begins = || known.iter().find(|option| option.starts_with(&format!("{name}-"))).cloned();
    // As Python's argparse reads it.
    let abbreviated = || {
        let mut words = alias::flags().map(|(long, _)| long).filter(|long| takes_settings && long.starts_with(bare));
        words.next().filter(|_| words.next().is_none())
    };
    match (nearest(name, known.iter().cloned()).or_else(of_key).or_else(begins), key) {
        (Some(option), _) => {
            let hint = with_value(&option, value);
            Meant::Option(option, hint)
        }
        (None, Some(key)) if flag::of_key(&key).is_none() => {
            let is_switch = schema::default(&key).is_some_and(Value::is_bool);
            let example = if is_switch { "true" } else { "VALUE" };
            Meant::Setting(format!("did you mean '{key}={}'?", value.unwrap_or(example)))
        }
        _ => abbreviated().map_or(Meant::Nothing, |word| Meant::Setting(format!("did you mean '--{word}'?"))),
    }
}

/// The remedy that names `option`, with the typed value if that is valid.
fn with_value(option: &str, value: Option<&str>) -> String {
    let takes_value = |flag: &&flag::Flag| !matches!(flag.takes, flag::Takes::Nothing(_));
    let flag = option.strip_prefix("--").and_then(flag::find).filter(takes_value);
    let Some((flag, value)) = flag.zip(value) else { return format!("did you mean '{option}'?") };
    match schema::rule(flag.key, &schema::parse(flag.key, value)) {
        None => format!("did you mean '{option} {value}'?"),
        Some(rule) => format!("did you mean '{option}'? {} must be {rule}, got '{value}'", flag::noun(flag.key)),
    }
}

/// The remedy for `word=text`, where `word` is neither a section nor one of `groups`.
pub fn for_bare_word(word: &str, text: &str, groups: &[String]) -> String {
    let meant = nearest_key(word);
    let flag = format!("--{word}");
    match (nearest(word, groups.iter().cloned()), meant) {
        (None, None) if alias::find(&flag).is_some() => format!("did you mean '{flag} {text}'?"),
        (Some(group), None) => format!("did you mean '{group}={text}'?"),
        (_, Some(key)) if flag::of_key(&key).is_some() => {
            format!("did you mean '{key}={text}' or '{}'?", flag::setting(&key, text))
        }
        (_, Some(key)) => format!("did you mean '{key}={text}'?"),
        (None, None) => "keys look like optim.learning_rate=0.1; 'train config' prints every key".into(),
    }
}

/// The key closest to `wrong`: the same name in another section or as a flag, a name of another trainer, or a name with
/// a few wrong letters.
fn nearest_key(wrong: &str) -> Option<String> {
    let wrong = wrong.to_lowercase().replace('-', "_");
    let name = last(&wrong);
    let elsewhere = || schema::keys().find(|key| last(key) == name);
    let flag = || flag::find(&name.replace('_', "-"));
    let familiar = || FAMILIAR.iter().find(|(known, _)| *known == name);
    elsewhere()
        .or_else(|| flag().map(|flag| flag.key.to_string()))
        .or_else(|| familiar().map(|(_, key)| key.to_string()))
        .or_else(|| alias::key_of(name).map(String::from))
        .or_else(|| nearest(&wrong, schema::keys()))
        .or_else(|| schema::keys().filter(|key| is_near(name, last(key))).min_by_key(|key| distance(name, last(key))))
}

/// The candidate at the smallest edit distance, if that is small.
pub fn nearest(word: &str, candidates: impl IntoIterator<Item = String>) -> Option<String> {
    candidates.into_iter().filter(|candidate| is_near(word, candidate)).min_by_key(|near| distance(word, near))
}

/// Whether `word` is `candidate` with slips of the pen: a letter or two in long words. A name with another word, or
/// with one more, means something else.
fn is_near(word: &str, candidate: &str) -> bool {
    let is_slip = |(a, b): &(&str, &str)| distance(a, b) <= (b.chars().count() / 4).max(1);
    let [ours, theirs] = [word, candidate].map(|name| name.split(['-', '_', '.']).filter(|part| !part.is_empty()));
    let letters = |name: &str| name.replace(['-', '_', '.'], "");
    let is_joined = distance(&letters(word), &letters(candidate)) <= 1;
    is_joined || (ours.clone().count() == theirs.clone().count() && ours.zip(theirs).all(|pair| is_slip(&pair)))
}

fn last(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}
