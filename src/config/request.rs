//! What the user asked for, before anything of it is understood.

use std::path::PathBuf;

/// What the user asked for, in their own words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The configuration in the checkpoint that is resumed or evaluated: it holds where nothing else says otherwise,
    /// except for what is about one session or about several processes.
    pub saved: Option<Saved>,
    /// The files of `--config`, the last one winning.
    pub files: Vec<PathBuf>,
    /// The directories of `--config-dir`, which add group files.
    pub config_dirs: Vec<PathBuf>,
    /// The environment: `TRAIN__SECTION__KEY`, and the variables of launchers.
    pub environment: Vec<(String, String)>,
    /// `KEY=VALUE` arguments.
    pub arguments: Vec<String>,
    /// Flags that stand for keys.
    pub flags: Vec<Setting>,
    /// What is wrong with arguments that stand for no setting, one line each.
    pub complaints: Vec<String>,
}

impl Request {
    /// Whether a flag or an argument sets `key`.
    pub fn names(&self, key: &str) -> bool {
        let is_key = |argument: &String| pair(argument).is_some_and(|(name, _)| name == key);
        self.flags.iter().any(|flag| flag.key == key) || self.arguments.iter().any(is_key)
    }
}

/// The configuration in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its file, for messages.
    pub path: PathBuf,
    /// TOML.
    pub text: String,
    /// What the user should know of it, if anything.
    pub note: Option<String>,
}

/// A flag with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, as in `run.epochs`; or the flag itself where another trainer's is to be translated.
    pub key: String,
    /// The value as it was typed.
    pub value: String,
    /// The flag, as in `--epochs`.
    pub flag: String,
}

/// The two sides of `KEY=VALUE`; Hydra's `+KEY=VALUE`, which adds a key, sets one that is there.
pub(super) fn pair(argument: &str) -> Option<(&str, &str)> {
    argument.trim_start_matches('+').split_once('=')
}
