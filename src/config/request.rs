//! The user's settings before they are interpreted.

use std::path::PathBuf;

use toml::{Table, Value};

use super::Config;

/// The user's settings, uninterpreted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// Where the command line comes from, as `--as` says: what its settings mean there.
    pub origin: Option<String>,
    /// The configuration of the checkpoint that is resumed or evaluated, the weakest layer after the defaults; keys of
    /// [`super::SESSION_KEYS`] are ignored, those of [`super::PLACEMENT_KEYS`] if the session is placed anew.
    pub saved: Option<Saved>,
    /// What the pretrained weights say about images and the network: defaults of a new run.
    pub weights: Option<Saved>,
    /// The files of `--config`, the last one winning.
    pub files: Vec<PathBuf>,
    /// The directories of `--config-dir`, which add group files.
    pub config_dirs: Vec<PathBuf>,
    /// The environment: `TRAIN__SECTION__KEY`, and the variables of launchers.
    pub environment: Vec<(String, String)>,
    /// `KEY=VALUE` arguments.
    pub arguments: Vec<String>,
    pub flags: Vec<Setting>,
    /// Errors in arguments that are not settings, one line each.
    pub complaints: Vec<String>,
}

impl Request {
    /// Without the variables of launchers, for a command that runs in one process even under a launcher.
    pub fn alone(mut self) -> Self {
        self.environment.retain(|(name, _)| name.starts_with("TRAIN__"));
        self
    }

    /// Whether a flag or an argument sets `key`.
    pub fn names(&self, key: &str) -> bool {
        let is_key = |argument: &String| pair(argument).is_some_and(|(name, _)| name == key);
        self.flags.iter().any(|flag| flag.key == key) || self.arguments.iter().any(is_key)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    pub path: PathBuf,
    pub text: String,
    /// Keys that the version that wrote it did not have, as a TOML text with what it did, unless that is the default.
    pub older: &'static str,
    pub note: Option<String>,
    /// Keys that the command does not use, which are not taken from it.
    pub without: &'static [&'static str],
}

impl Saved {
    /// All of its settings as TOML; text that is not TOML as it is.
    pub fn whole(&self) -> String {
        let (Ok(mut settings), Ok(older)) = (self.text.parse::<Table>(), self.older.parse::<Table>()) else {
            return self.text.clone();
        };
        let defaults = Table::try_from(Config::default()).expect("the configuration is plain TOML values");
        for (section, keys) in older.into_iter().chain(defaults) {
            if let (Some(Value::Table(settings)), Value::Table(keys)) = (settings.get_mut(&section), keys) {
                for (key, value) in keys {
                    settings.entry(key).or_insert(value);
                }
            }
        }
        settings.to_string()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, as in `run.epochs`, or the name of an alias.
    pub key: String,
    pub value: String,
    /// Where it was typed: the flag, as in `--epochs`, or the argument.
    pub place: String,
}

/// The two sides of `KEY=VALUE`, or of Hydra's `+KEY=VALUE`.
pub(super) fn pair(argument: &str) -> Option<(&str, &str)> {
    argument.trim_start_matches('+').split_once('=')
}
