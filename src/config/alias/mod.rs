//! Spellings of other trainers that work as they are typed.
//!
//! `lightning.rs` lists the words of Lightning and of its Hydra template (`trainer.max_epochs=3`), `scripts.rs` the
//! flags of PyTorch's scripts, timm and TensorFlow's (`--amp`) that do not mean exactly what one flag of the table in
//! [`super::flag`] means. A spelling whose meaning is another one here is refused with the setting that comes closest.
//! What is spelled in Kiln's own way wins over all of these.

mod lightning;
mod scripts;

use super::flag;
use super::layer::{Complaints, Layer};
use super::merged::Merged;
use super::schema::{Schema, enumerate};

/// A spelling of another trainer.
#[derive(Debug)]
pub struct Alias {
    /// A word, as in `trainer.max_epochs`, or a flag with its `--`.
    pub name: &'static str,
    /// Whether it has a value; words always have one.
    pub takes_value: bool,
    means: Means,
}

/// Settings: our keys with their values.
type Sets = &'static [(&'static str, &'static str)];

/// The same where they are computed; else the rule that the value breaks, as in "must be *a number*", and the remedy.
type Read = Result<Vec<(&'static str, String)>, (&'static str, String)>;

/// What a spelling means here.
#[derive(Debug)]
enum Means {
    /// The same value of this key.
    Key(&'static str),
    /// This, for a flag that has no value.
    Sets(Sets),
    /// What stands beside its value, and a remedy for values that are not listed.
    Choice(&'static [(&'static str, Sets)], &'static str),
    /// What the function makes of its value.
    Read(fn(&str, &Line) -> Read),
    /// Nothing; the remedy.
    Nothing(&'static str),
}

impl Alias {
    const fn word(name: &'static str, means: Means) -> Self {
        Self { name, takes_value: true, means }
    }

    const fn key(name: &'static str, key: &'static str) -> Self {
        Self::word(name, Means::Key(key))
    }

    const fn switch(name: &'static str, means: Means) -> Self {
        Self { name, takes_value: false, means }
    }
}

/// An [`Alias`] that was typed.
#[derive(Debug, Clone)]
pub struct Typed {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What messages call the place.
    pub place: String,
}

/// All that were typed together.
struct Line<'a>(&'a [Typed]);

impl Line<'_> {
    /// The value of another one, if it was typed.
    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|typed| typed.name == name).map(|typed| typed.value.as_str())
    }
}

/// The flags, which the command line has to know.
pub fn flags() -> &'static [Alias] {
    scripts::FLAGS
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Alias> {
    lightning::WORDS.iter().chain(scripts::FLAGS)
}

/// The spelling of this name.
pub fn find(name: &str) -> Option<&'static Alias> {
    all().find(|alias| alias.name == name)
}

/// The key for which others say `name`, as in `max_epochs`.
pub fn key_of(name: &str) -> Option<&'static str> {
    let last = |alias: &Alias| alias.name.rsplit('.').next().map(|last| last.trim_start_matches('-').replace('-', "_"));
    all().find_map(|alias| match alias.means {
        Means::Key(key) if last(alias).as_deref() == Some(name) => Some(key),
        _ => None,
    })
}

/// Whether `value` says no more than that `key` is not set: torch's `env://` means the variables of a launcher, which
/// are read in any case.
pub fn is_unset(key: &str, value: &str) -> bool {
    (key, value.trim()) == ("parallel.dist_url", "env://")
}

/// Adds to `layer` what is meant by `line`.
pub fn add(line: &[Typed], layer: &mut Layer, schema: &Schema, complaints: &mut Complaints) {
    for typed in line {
        let Some(alias) = find(&typed.name) else { continue };
        // Python's and YAML's words for a value that is not given.
        if ["null", "None"].contains(&typed.value.as_str()) && !matches!(alias.means, Means::Nothing(_)) {
            continue;
        }
        match alias.read(typed, &Line(line), schema) {
            Ok(settings) => settings.into_iter().for_each(|(key, text)| {
                layer.add_text(key, &text, typed.place.clone(), schema, complaints);
            }),
            Err(complaint) => complaints.lines.push(complaint),
        }
    }
}

impl Alias {
    /// The keys that it is known to set; what is computed is not.
    pub fn keys(&self) -> Vec<&'static str> {
        match self.means {
            Means::Key(key) => vec![key],
            Means::Sets(sets) => sets.iter().map(|(key, _)| *key).collect(),
            Means::Choice(choices, _) => choices.iter().flat_map(|(_, sets)| *sets).map(|(key, _)| *key).collect(),
            Means::Read(_) | Means::Nothing(_) => Vec::new(),
        }
    }

    /// The settings, or the complaint.
    fn read(&self, typed: &Typed, line: &Line, schema: &Schema) -> Result<Vec<(&'static str, String)>, String> {
        let Typed { name, value, place } = typed;
        let place = if place == name { String::new() } else { format!(" ({place})") };
        let own = |sets: Sets| sets.iter().map(|(key, text)| (*key, text.to_string())).collect();
        match self.means {
            // Python's True.
            Means::Key(key) if schema.default(key).is_some_and(|value| value.is_bool()) => {
                Ok(vec![(key, value.to_lowercase())])
            }
            Means::Key(key) => Ok(vec![(key, value.clone())]),
            Means::Sets(sets) => Ok(own(sets)),
            Means::Choice(choices, remedy) => {
                let chosen = choices.iter().find(|(choice, _)| *choice == value.to_lowercase());
                chosen.map(|(_, sets)| own(sets)).ok_or_else(|| {
                    let known: Vec<_> = choices.iter().map(|(choice, _)| choice).collect();
                    format!("{name} must be {}, got '{value}'{place}; {remedy}", enumerate(&known, "or"))
                })
            }
            Means::Read(read) => read(value, line)
                .map_err(|(rule, remedy)| format!("{name} must be {rule}, got '{value}'{place}; {remedy}")),
            Means::Nothing(remedy) => Err(format!("{name} has no meaning here{place}; {remedy}")),
        }
    }
}

/// The batch of some data modules is that of all replicas together and that of others is one replica's: where there are
/// several, the user has to say which.
pub fn whose_batch(merged: &Merged) -> Option<String> {
    const BATCH: &str = "parallel.batch_size";
    let parallel = &merged.config.parallel;
    let (place, world, batch) = (merged.place(BATCH), parallel.world_size, parallel.batch_size);
    let word = lightning::BATCHES.iter().find(|word| place.starts_with(&format!("argument '{word}=")))?;
    let (each, part) =
        (flag::setting(BATCH, &batch.to_string()), flag::setting(BATCH, &(batch / world.max(1)).to_string()));
    (world > 1).then(|| {
        format!(
            "{word} is ambiguous with a world size of '{world}' ({place}); use {each} if it is the batch of one \
             replica, or {part} if it is the batch of all together"
        )
    })
}

/// Devices as a number, or as their indices in a list.
fn devices(text: &str) -> Option<Vec<i64>> {
    let list = text.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(indices) = list.or(text.contains(',').then_some(text)) {
        return indices.split(',').map(|index| index.trim().parse().ok()).collect();
    }
    text.trim().parse().ok().filter(|count| (1..=1024).contains(count)).map(|count| (0..count).collect())
}

/// One replica on each of these devices of each of `machines` machines.
fn placed(devices: &[i64], machines: usize) -> Vec<(&'static str, String)> {
    let indices: Vec<_> = devices.iter().map(ToString::to_string).collect();
    vec![
        ("parallel.world_size", (devices.len() * machines).to_string()),
        ("parallel.gpu_ids", format!("[{}]", indices.join(","))),
    ]
}
