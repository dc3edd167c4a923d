//! Why a process is not admitted.

use prost::Message;
use serde::{Deserialize, Serialize};

/// Why a process is not admitted.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
pub struct Refusal {
    /// For the person at the refused process.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// Whether the same command may succeed later.
    #[prost(bool, tag = "2")]
    pub passing: bool,
    /// Whether the service is that of another job or another build: no word on the job that was meant.
    #[prost(bool, tag = "3")]
    pub elsewhere: bool,
}

impl Refusal {
    /// A refusal that the same command would meet again.
    pub fn lasting(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), passing: false, elsewhere: false }
    }

    /// A refusal that may have gone away when the same command is tried later.
    pub fn passing(reason: impl Into<String>) -> Self {
        Self { passing: true, ..Self::lasting(reason) }
    }

    /// A lasting refusal by the service of another job.
    pub fn elsewhere(reason: impl Into<String>) -> Self {
        Self { elsewhere: true, ..Self::lasting(reason) }
    }
}
