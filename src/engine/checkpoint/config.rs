//! The settings of checkpoints: the `[checkpoint]` section.
//!
//! `config/default.toml` documents it for users, the config room checks it. Its two small languages, [`Interval`]
//! (`1epochs`) and [`Resume`] (`latest`), are strings in files and types in the code.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use kiln_system::with_defaults;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interval {
    /// Only at the end of the run.
    Never,
    /// After every `n` epochs, at least 1.
    Epochs(usize),
    /// After every `n` optimizer steps, at least 1.
    Steps(usize),
}

impl FromStr for Interval {
    type Err = String;

    /// Reads `1epochs`, `500steps` or `never`; the singular and a space before the unit are allowed.
    fn from_str(text: &str) -> Result<Self, String> {
        const RULE: &str = "a number of epochs or steps of at least 1, such as 1epochs or 500steps, or never";
        let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let count = digits.parse().unwrap_or(0);
        match (count, unit.trim_start()) {
            (_, "never") if digits.is_empty() => Ok(Self::Never),
            (1.., "epoch" | "epochs") => Ok(Self::Epochs(count)),
            (1.., "step" | "steps") => Ok(Self::Steps(count)),
            _ => Err(RULE.into()),
        }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Epochs(count) => write!(f, "{count}epochs"),
            Self::Steps(count) => write!(f, "{count}steps"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PathBuf", into = "PathBuf")]
pub enum Resume {
    /// From the beginning; the empty string.
    Off,
    /// From the newest whole checkpoint of the latest run.
    Latest,
    /// From the best checkpoint of the latest run.
    Best,
    /// From the newest whole checkpoint of the run's own directory; from the beginning if it has none.
    Auto,
    /// From this checkpoint, or from the newest one of this run's directory or of its copies at a URL.
    Path(PathBuf),
}

impl From<PathBuf> for Resume {
    fn from(path: PathBuf) -> Self {
        match path.to_str() {
            Some("") => Self::Off,
            Some("latest") => Self::Latest,
            Some("best") => Self::Best,
            Some("auto") => Self::Auto,
            _ => Self::Path(path),
        }
    }
}

impl From<Resume> for PathBuf {
    fn from(resume: Resume) -> Self {
        match resume {
            Resume::Off => PathBuf::new(),
            Resume::Latest => "latest".into(),
            Resume::Best => "best".into(),
            Resume::Auto => "auto".into(),
            Resume::Path(path) => path,
        }
    }
}

with_defaults! {
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct CheckpointConfig {
        #[serde(with = "kiln_system::text")]
        pub every: Interval = Interval::Epochs(1),
        pub keep_last: usize = 3,
        pub keep_best: usize = 1,
        pub path: PathBuf = PathBuf::new(),
        pub url: PathBuf = PathBuf::new(),
        pub resume: Resume = Resume::Off,
        pub force_config: bool = false,
    }
}
