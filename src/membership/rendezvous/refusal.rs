//! The answer to a process that is not admitted.

use prost::Message;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
pub struct Refusal {
    /// For the user of the refused process.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// Whether the same command may succeed later.
    #[prost(bool, tag = "2")]
    pub transient: bool,
    /// Whether the service belongs to another job or another build.
    #[prost(bool, tag = "3")]
    pub other_job: bool,
}

impl Refusal {
    /// The same command will be refused again.
    pub fn permanent(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), transient: false, other_job: false }
    }

    pub fn transient(reason: impl Into<String>) -> Self {
        Self { transient: true, ..Self::permanent(reason) }
    }

    pub fn other_job(reason: impl Into<String>) -> Self {
        Self { other_job: true, ..Self::permanent(reason) }
    }
}
