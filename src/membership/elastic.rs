//! How many processes may take part in a job.

use std::fmt;
use std::str::FromStr;

/// The number of processes of a run: fixed, or within limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elastic {
    /// Membership is fixed: the loss of a process ends the run.
    Off,
    /// Processes may join and leave.
    Between {
        /// The run waits while there are fewer, at least 1.
        min: usize,
        /// More stay in reserve; `None` for as many as there are replicas.
        max: Option<usize>,
    },
}

impl Elastic {
    /// Whether processes may join and leave.
    pub fn is_on(self) -> bool {
        self != Self::Off
    }
}

impl FromStr for Elastic {
    type Err = String;

    /// Reads `1:4`, `1:` (at most one process per replica), `4` (exactly four) or `off`.
    fn from_str(text: &str) -> Result<Self, String> {
        const RULE: &str = "the fewest and the most processes, such as 1:4, or off";
        if text == "off" {
            return Ok(Self::Off);
        }
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        let count = |text: &str| text.parse().ok().filter(|count| *count > 0);
        let max = if max.is_empty() { None } else { Some(count(max).ok_or(RULE)?) };
        match count(min) {
            Some(min) if max.is_none_or(|max| min <= max) => Ok(Self::Between { min, max }),
            _ => Err(RULE.into()),
        }
    }
}

impl fmt::Display for Elastic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Between { min, max: None } => write!(f, "{min}:"),
            Self::Between { min, max: Some(max) } => write!(f, "{min}:{max}"),
        }
    }
}
