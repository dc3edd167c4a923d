//! Keys and flags of other trainers that Kiln accepts.
//!
//! `lightning.rs` lists the keys of Lightning and its Hydra template (`trainer.max_epochs=3`), `scripts.rs` the flags
//! of PyTorch's scripts, timm and TensorFlow's (`--amp`) that are not a plain synonym of one flag in [`super::flag`]. A
//! name without an equivalent is refused with the closest setting. Kiln's own names take precedence over all of these.

mod lightning;
mod scripts;

pub use lightning::BATCHES;

use super::schema::{Schema, enumerate};

/// A key or flag of another trainer.
#[derive(Debug)]
pub struct Alias {
    /// A key, as in `trainer.max_epochs`, or a flag with its `--`.
    pub name: &'static str,
    /// Whether it takes a value; keys always do.
    pub takes_value: bool,
    means: Means,
}

/// Settings: Kiln's keys with their values.
type Sets = &'static [(&'static str, &'static str)];

/// Computed settings, or the rule that the value breaks, as in "must be *a number*", and the remedy.
type Read = Result<Vec<(&'static str, String)>, (&'static str, String)>;

#[derive(Debug)]
enum Means {
    /// The same value for this key.
    Key(&'static str),
    /// These settings, for a flag without a value.
    Sets(Sets),
    /// The settings listed for its value, and a remedy for other values.
    Choice(&'static [(&'static str, Sets)], &'static str),
    /// Settings computed from its value.
    Read(fn(&str, &Line) -> Read),
    /// Not supported; the remedy.
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

/// An [`Alias`] on the command line.
#[derive(Debug, Clone)]
pub struct Typed {
    /// Name of the alias.
    pub name: String,
    /// Value as typed.
    pub value: String,
    /// Where it was set, for messages.
    pub place: String,
}

struct Line<'a>(&'a [Typed]);

impl Line<'_> {
    /// The value of the alias `name`, if it was typed.
    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|typed| typed.name == name).map(|typed| typed.value.as_str())
    }
}

/// The aliases that are flags, for the command line's parser.
pub fn flags() -> &'static [Alias] {
    scripts::FLAGS
}

/// All aliases.
pub fn all() -> impl Iterator<Item = &'static Alias> {
    lightning::WORDS.iter().chain(scripts::FLAGS)
}

/// The alias of this name.
pub fn find(name: &str) -> Option<&'static Alias> {
    all().find(|alias| alias.name == name)
}

/// The key with an alias whose last part is `name`, as in `max_epochs`.
pub fn key_of(name: &str) -> Option<&'static str> {
    let last = |alias: &Alias| alias.name.rsplit('.').next().map(|last| last.trim_start_matches('-').replace('-', "_"));
    all().find_map(|alias| match alias.means {
        Means::Key(key) if last(alias).as_deref() == Some(name) => Some(key),
        _ => None,
    })
}

/// Whether `value` means that `key` is not set: torch's `env://` refers to a launcher's variables, which are always
/// read.
pub fn is_unset(key: &str, value: &str) -> bool {
    (key, value.trim()) == ("parallel.dist_url", "env://")
}

impl Alias {
    /// The keys that it sets, except computed ones.
    pub fn keys(&self) -> Vec<&'static str> {
        match self.means {
            Means::Key(key) => vec![key],
            Means::Sets(sets) => sets.iter().map(|(key, _)| *key).collect(),
            Means::Choice(choices, _) => choices.iter().flat_map(|(_, sets)| *sets).map(|(key, _)| *key).collect(),
            Means::Read(_) | Means::Nothing(_) => Vec::new(),
        }
    }

    /// The settings of `typed`, which may depend on the other aliases in `line`, or the complaint.
    pub fn read(&self, typed: &Typed, line: &[Typed], schema: &Schema) -> Result<Vec<(&'static str, String)>, String> {
        let (Typed { name, value, place }, line) = (typed, &Line(line));
        // Python's and YAML's spelling of a missing value.
        if ["null", "None"].contains(&value.as_str()) && !matches!(self.means, Means::Nothing(_)) {
            return Ok(Vec::new());
        }
        let place = if place == name { String::new() } else { format!(" ({place})") };
        let own = |sets: Sets| sets.iter().map(|(key, text)| (*key, text.to_string())).collect();
        match self.means {
            // Python spells it True.
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

/// Device indices, from a count or a list of indices.
fn devices(text: &str) -> Option<Vec<i64>> {
    let list = text.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(indices) = list.or(text.contains(',').then_some(text)) {
        return indices.split(',').map(|index| index.trim().parse().ok()).collect();
    }
    text.trim().parse().ok().filter(|count| (1..=1024).contains(count)).map(|count| (0..count).collect())
}

/// Settings for one replica on each of these devices of each of `machines` machines.
fn placed(devices: &[i64], machines: usize) -> Vec<(&'static str, String)> {
    let indices: Vec<_> = devices.iter().map(ToString::to_string).collect();
    vec![
        ("parallel.world_size", (devices.len() * machines).to_string()),
        ("parallel.gpu_ids", format!("[{}]", indices.join(","))),
    ]
}
