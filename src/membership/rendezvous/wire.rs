//! The messages between a member and the service.
//!
//! Both directions carry [`Envelope`]s. The first of each side ([`greeting`](super::greeting)) is protobuf with field
//! numbers that never change, so that two builds of any versions understand why one refuses the other. Later messages
//! are MessagePack of the types themselves, since both sides then have the same build. Changing a message requires a
//! new [`PROTOCOL`].

use std::time::Duration;

use prost::Message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::election::Vote;
use super::membership::{Event, MembershipView, ProcessInfo, Progress, Ready, SessionId};
use super::refusal::Refusal;

/// The version of these messages.
pub const PROTOCOL: u32 = 10;
/// The largest encoded envelope, in bytes.
pub const ENVELOPE_LIMIT: usize = 1 << 20;
/// The largest overhead of an envelope over the value it carries, in bytes.
pub const ENVELOPE_MARGIN: usize = 1 << 10;

#[derive(Clone, PartialEq, Message)]
pub struct Envelope {
    /// An encoded message: a [`Greeting`] and its [`Answer`], a [`Purpose`], then [`FromMember`] and [`FromService`].
    #[prost(bytes = "vec", tag = "2")]
    pub body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Greeting {
    #[prost(message, optional, tag = "1")]
    pub hello: Option<Hello>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Answer {
    /// Why the process is not admitted, if it is not.
    #[prost(message, optional, tag = "2")]
    pub refusal: Option<Refusal>,
}

/// The introduction of a process. Tag 5 was used by an earlier version.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(string, tag = "3")]
    pub job_id: String,
    /// The number of processes in its settings; 0 for an elastic job.
    #[prost(uint64, tag = "4")]
    pub size: u64,
}

/// Why a process connects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Purpose {
    Join(ProcessInfo),
    Look,
    /// To ask the member of this rank to leave.
    Drain(usize),
    Replace,
    /// To be the leader of a rendezvous with several addresses.
    Claim {
        candidate: u64,
        lease: Duration,
        /// The latest generation; 0 if it leads none.
        generation: u64,
        over: Option<Refusal>,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromMember {
    /// Stores `value` under `key`; the first write wins. The answer carries the same `id`.
    Set {
        id: u64,
        key: String,
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Waits until all `keys` are there, at most `limit`. The answers carry the same `id`.
    Get {
        id: u64,
        keys: Vec<String>,
        limit: Duration,
    },
    Beat(Progress),
    /// A collective of this generation, or connecting for it, failed with this symptom.
    Trouble(Progress, u64, String),
    /// The last message: the member has finished, or failed for this reason.
    Leave(Progress, Option<String>),
    /// In an elastic job: the member can take part in the next generation.
    Ready(Ready),
    Drain,
    /// In an elastic job: the member has connected for this pending generation.
    Connected(u64),
}

impl FromMember {
    /// The events for the roster; none for requests to the store.
    pub fn events(self, session: SessionId) -> Vec<Event> {
        match self {
            Self::Beat(progress) => vec![Event::Beat(session, progress)],
            Self::Trouble(progress, generation, symptom) => {
                vec![Event::Beat(session, progress), Event::Trouble(session, generation, symptom)]
            }
            Self::Leave(progress, failed) => vec![Event::Beat(session, progress), Event::Left(session, failed)],
            Self::Ready(ready) => vec![Event::Ready(session, ready)],
            Self::Drain => vec![Event::Drain(session)],
            Self::Connected(generation) => vec![Event::Connected(session, generation)],
            Self::Set { .. } | Self::Get { .. } => Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromService {
    Refusal(Refusal),
    /// No process has joined the job yet.
    Nobody,
    View(MembershipView),
    /// The job is over, and why.
    Verdict(String),
    /// The answer to a beat: a lease of at most so long from when that was sent.
    Alive(Duration),
    Vote(Vote),
    /// The process holds an address of the rendezvous and does not lead.
    Elsewhere,
    /// One value of a `Get`, in the order of its keys, since all of them may not fit an envelope; without bytes the
    /// answer to a `Set`.
    Value(u64, #[serde(with = "serde_bytes")] Vec<u8>),
    /// The `Set` or `Get` failed, and why.
    Denied(u64, String),
}

pub fn encode(message: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec(message).expect("plain data is always MessagePack")
}

/// The message in `bytes`, or why it cannot be read.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    rmp_serde::from_slice(bytes).map_err(|error| error.to_string())
}
