//! Keys and flags of other trainers that Kiln accepts.
//!
//! `lightning.rs` lists the keys of Lightning and its Hydra template (`trainer.max_epochs=3`), `lightning_legacy.rs`
//! those of its first versions, `launchers.rs` the flags of torchrun, `scripts.rs` those of PyTorch's scripts, timm and
//! TensorFlow's (`--amp`), `timm.rs` further ones of timm, that are not a plain synonym of one flag in [`super::flag`].
//! Lightning's keys work without their `trainer.` and as flags, too. `placement.rs` reads numbers of devices and
//! machines. A name without an equivalent is refused with the closest setting. Kiln's own names take precedence over
//! all of these. `origins.rs` has what whole command lines of a script mean (`--as ORIGIN`).

mod launchers;
mod lightning;
mod lightning_legacy;
pub mod origins;
mod placement;
mod scripts;
mod timm;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::request::{self, Setting};
use super::schema::{self, enumerate};
use super::{flag, group};

/// Keys or flags of other trainers with the same meaning.
#[derive(Debug)]
pub struct Alias {
    /// Keys, as in `trainer.max_epochs`, or flags with their `--`, separated by spaces.
    names: &'static str,
    /// Whether they take a value; keys always do.
    pub takes_value: bool,
    means: Means,
}

/// One of the names of an alias, with the alias.
pub type Named = (&'static str, &'static Alias);

/// Settings as they are typed, separated by spaces: Kiln's keys with their values.
type Sets = &'static str;

/// The keys and values of `sets`.
pub(super) fn pairs(sets: Sets) -> impl Iterator<Item = (&'static str, String)> {
    sets.split_whitespace().filter_map(request::pair).map(|(key, value)| (key, value.into()))
}

/// The section of Lightning's keys.
const TRAINER: &str = "trainer.";

const LOGS: &str =
    "use --mlflow, and 'wandb import mlflow' for Weights & Biases; or read metrics.jsonl, or --tensorboard";
const LOGGER: Means =
    Means::Choice(&[("csv", ""), ("tensorboard", "run.tensorboard=true"), ("mlflow", "run.mlflow=true")], LOGS);

/// Processes that load: here threads of the training process do, as many as the machine has cores or `--threads` says.
const LOADERS: Means =
    Means::Read(|value, _| whole(value, "threads of this process load images; --threads N limits all threads"));

/// A number that changes no number of a run.
const COUNT: Means = Means::Read(|value, _| whole(value, "remove it"));

fn whole(value: &str, remedy: &str) -> Read {
    value.trim().parse::<u32>().map(|_| Vec::new()).map_err(|_| ("a whole number", remedy.into()))
}

/// Who asks for mixed precision in the words of another trainer wants speed.
const F16: Sets = "run.precision=f16 run.half_if_fast=true";
const BF16: Sets = "run.precision=bf16 run.half_if_fast=true";
const F32: Sets = "run.precision=f32";

/// Apex's.
const AMP_LEVEL: Means =
    Means::Choice(&[("o0", F32), ("o1 o2", F16)], "O3 keeps weights in f16, Kiln always in f32; use --precision f16");

/// Computed settings, or the rule that the value breaks, as in "must be *a number*", and the remedy.
type Read = Result<Vec<(&'static str, String)>, (&'static str, String)>;

#[derive(Debug)]
enum Means {
    Key(&'static str),
    /// These settings, for a flag without a value.
    Sets(Sets),
    /// The settings listed for its value, and a remedy for other values; values with the same settings are separated by
    /// spaces. One that ends in a dot may have more behind it.
    Choice(&'static [(&'static str, Sets)], &'static str),
    /// No settings for these values, and a remedy for others.
    Only(&'static str, &'static str),
    /// Settings computed from its value.
    Read(fn(&str, &Line) -> Read),
    Nothing(&'static str),
}

impl Alias {
    const fn word(names: &'static str, means: Means) -> Self {
        Self { names, takes_value: true, means }
    }

    const fn key(names: &'static str, key: &'static str) -> Self {
        Self::word(names, Means::Key(key))
    }

    const fn only(names: &'static str, values: &'static str, remedy: &'static str) -> Self {
        Self::word(names, Means::Only(values, remedy))
    }

    /// Its values follow with [`Alias::of`].
    const fn choice(names: &'static str, remedy: &'static str) -> Self {
        Self::word(names, Means::Choice(&[], remedy))
    }

    const fn of(self, choices: &'static [(&'static str, Sets)]) -> Self {
        let Means::Choice(_, remedy) = self.means else { return self };
        Self::word(self.names, Means::Choice(choices, remedy))
    }

    const fn switch(names: &'static str, means: Means) -> Self {
        Self { names, takes_value: false, means }
    }
}

/// The aliases on the command line.
struct Line<'a>(&'a [Setting]);

impl Line<'_> {
    /// The value of the alias `name`, if it was typed.
    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|typed| typed.key == name).map(|typed| typed.value.as_str())
    }
}

/// The aliases that are flags, for the command line's parser, each with its name in kebab-case without `--`.
pub fn flags() -> impl Iterator<Item = (String, Named)> {
    let own = named([launchers::FLAGS, scripts::FLAGS, timm::FLAGS]);
    let of_origins = origins::ORIGINS.iter().flat_map(|origin| named([origin.words]));
    let long = |alias: Named| Some((alias.0.strip_prefix("--")?.to_string(), alias));
    let keys = all().filter_map(|alias| Some((alias.0.strip_prefix(TRAINER)?.replace('_', "-"), alias)));
    let longs = flag::all().flat_map(|flag| flag.aliases.iter().chain([&flag.long]));
    let mut taken: BTreeSet<String> = longs.map(|long| long.to_string()).collect();
    let all = own.filter_map(long).chain(keys).chain(of_origins.filter_map(long));
    all.filter(move |(long, _)| taken.insert(long.clone()))
}

pub fn all() -> impl Iterator<Item = Named> {
    named([lightning::WORDS, lightning_legacy::WORDS, launchers::FLAGS, scripts::FLAGS, timm::FLAGS])
}

fn named<const N: usize>(tables: [&'static [Alias]; N]) -> impl Iterator<Item = Named> {
    tables.into_iter().flatten().flat_map(|alias| alias.names.split_whitespace().map(move |name| (name, alias)))
}

/// The alias of this name; aliases of Lightning's trainer also match without `trainer.`.
pub fn find(name: &str) -> Option<Named> {
    // A line in Kiln's own words is found by asking thousands of times.
    static NAMES: LazyLock<BTreeMap<&str, Named>> = LazyLock::new(|| {
        let bare = all().filter_map(|named| Some((named.0.strip_prefix(TRAINER)?, named)));
        let mut names = BTreeMap::new();
        for (name, named) in all().map(|named| (named.0, named)).chain(bare) {
            names.entry(name).or_insert(named);
        }
        names
    });
    NAMES.get(name).copied()
}

/// The complaint about a word that has a meaning only where a command line comes from.
pub(super) fn elsewhere(typed: &Setting) -> String {
    let has = |origin: &&origins::Origin| origin.word(&typed.key).is_some();
    let names: Vec<_> = origins::ORIGINS.iter().filter(has).map(|origin| origin.name).collect();
    let remedy = names.iter().map(|name| format!("--as {name}")).collect::<Vec<_>>().join(" or ");
    let group = typed.key.trim_start_matches('-');
    if group::groups(&[]).iter().any(|known| known == group) {
        return format!(
            "unknown option '{}'; did you mean '{group}={}'? In scripts it needs {remedy}",
            typed.key, typed.value
        );
    }
    format!("{} has a meaning only in {}; for that add {remedy}", typed.key, enumerate(&names, "and"))
}

/// The word of a data module that a batch size was set by at `place`, if it was; ambiguous but in Lightning.
pub(super) fn word_of_data_module(place: &str) -> Option<&'static str> {
    lightning::BATCHES.split(' ').find(|word| place.starts_with(&format!("argument '{word}=")))
}

/// The key with an alias that ends in `name`, as in `max_epochs`.
pub fn key_of(name: &str) -> Option<&'static str> {
    let last = |alias: &str| alias.rsplit('.').next().map(|last| last.trim_start_matches('-').replace('-', "_"));
    all().find_map(|(known, alias)| match alias.means {
        Means::Key(key) if last(known).as_deref() == Some(name) => Some(key),
        _ => None,
    })
}

impl Alias {
    /// The keys that it sets, except computed ones.
    pub fn keys(&self) -> Vec<&'static str> {
        match self.means {
            Means::Key(key) => vec![key],
            Means::Sets(sets) => pairs(sets).map(|(key, _)| key).collect(),
            Means::Choice(choices, _) => choices.iter().flat_map(|(_, sets)| pairs(sets)).map(|(key, _)| key).collect(),
            Means::Only(..) | Means::Read(_) | Means::Nothing(_) => Vec::new(),
        }
    }

    pub fn refusal(&self) -> Option<&'static str> {
        if let Means::Nothing(remedy) = self.means { Some(remedy) } else { None }
    }

    /// The settings of `typed`, which may depend on the other aliases in `line`, or the complaint.
    pub fn read(&self, typed: &Setting, line: &[Setting]) -> Result<Vec<(&'static str, String)>, String> {
        let (Setting { key: name, value, place }, line) = (typed, &Line(line));
        // Python's and YAML's spelling of a missing value.
        if ["null", "None"].contains(&value.as_str()) && !matches!(self.means, Means::Nothing(_)) {
            return Ok(Vec::new());
        }
        let place = if place == name { String::new() } else { format!(" ({place})") };
        let must = |rule: &str, remedy: &str| format!("{name} must be {rule}, got '{value}'{place}; {remedy}");
        let among = |choices: &[(&'static str, Sets)], remedy: &str| {
            let value = value.to_lowercase();
            let is_it = |it: &str| it == value || (it.ends_with('.') && format!("{value}.").starts_with(it));
            let chosen = choices.iter().find(|(values, _)| values.split(' ').any(is_it));
            chosen.map(|(_, sets)| pairs(sets).collect()).ok_or_else(|| {
                let known = choices.iter().flat_map(|(values, _)| values.split(' '));
                let known: Vec<_> =
                    known.map(|it| if it.is_empty() { "''" } else { it.trim_end_matches('.') }).collect();
                must(&enumerate(&known, "or"), remedy)
            })
        };
        match self.means {
            // Python spells it True.
            Means::Key(key) if schema::default(key).is_some_and(|value| value.is_bool()) => {
                Ok(vec![(key, value.to_lowercase())])
            }
            Means::Key(key) => Ok(vec![(key, value.clone())]),
            Means::Sets(sets) => Ok(pairs(sets).collect()),
            Means::Choice(choices, remedy) => among(choices, remedy),
            Means::Only(values, remedy) => among(&[(values, "")], remedy),
            Means::Read(read) => read(value, line).map_err(|(rule, remedy)| must(rule, &remedy)),
            Means::Nothing(remedy) => Err(format!("{name} has no meaning here{place}; {remedy}")),
        }
    }
}
