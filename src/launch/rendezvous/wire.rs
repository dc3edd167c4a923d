//! What travels between a member and the service.
//!
//! Both directions carry [`Envelope`]s. The messages of the [`handshake`](super::handshake) are protobuf whose field
//! numbers never change, so that builds of any two versions understand why one refuses the other. Everything later is
//! MessagePack of the types themselves, as both sides are then of the same build; a body is decoded only after its
//! envelope was found authentic (see [`seal`](super::seal)). Whoever changes a message raises [`PROTOCOL`].

use std::time::Duration;

use prost::Message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::bulletin::{Bulletin, Event, Newcomer, Progress, Ready, Seat};
use super::refusal::Refusal;

/// The version of these messages and of the handshake.
pub const PROTOCOL: u32 = 5;
/// The largest encoded envelope, in bytes.
pub const ENVELOPE_LIMIT: usize = 1 << 20;
/// What an envelope may need beside the value it carries, in bytes.
pub const ENVELOPE_MARGIN: usize = 1 << 10;

/// One message in either direction.
#[derive(Clone, PartialEq, Message)]
pub struct Envelope {
    /// Counts the envelopes of one direction from 0.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// An encoded message: [`Greeting`] and [`Answer`] during the handshake, [`FromMember`] and [`FromService`] later.
    #[prost(bytes = "vec", tag = "2")]
    pub body: Vec<u8>,
    /// HMAC-SHA256 over direction, sequence and body; during the handshake empty, or over a refusal and the greeting that
    /// it answers.
    #[prost(bytes = "vec", tag = "3")]
    pub mac: Vec<u8>,
}

/// What a process sends during the handshake: first a hello, then a proof.
#[derive(Clone, PartialEq, Message)]
pub struct Greeting {
    /// Who wants to join what.
    #[prost(message, optional, tag = "1")]
    pub hello: Option<Hello>,
    /// The answer to a challenge.
    #[prost(message, optional, tag = "2")]
    pub proof: Option<Proof>,
}

/// What the service answers to a hello: one of these.
#[derive(Clone, PartialEq, Message)]
pub struct Answer {
    /// The service's proof, and what the process has to prove.
    #[prost(message, optional, tag = "1")]
    pub challenge: Option<Challenge>,
    /// The process is not admitted.
    #[prost(message, optional, tag = "2")]
    pub refusal: Option<Refusal>,
}

/// Who wants to join what.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// [`PROTOCOL`] of the process.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The version of its Kiln.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The job it belongs to.
    #[prost(string, tag = "3")]
    pub job_id: String,
    /// How many processes it believes the job has; 0 if they come and go.
    #[prost(uint64, tag = "4")]
    pub size: u64,
    /// 32 fresh bytes.
    #[prost(bytes = "vec", tag = "5")]
    pub nonce: Vec<u8>,
}

/// The service's answer to a [`Hello`].
#[derive(Clone, PartialEq, Message)]
pub struct Challenge {
    /// 32 fresh bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub nonce: Vec<u8>,
    /// Proves that the service knows the secret.
    #[prost(bytes = "vec", tag = "2")]
    pub mac: Vec<u8>,
}

/// The answer to a [`Challenge`].
#[derive(Clone, PartialEq, Message)]
pub struct Proof {
    /// Proves that the process knows the secret, and that it wrote `introduction`.
    #[prost(bytes = "vec", tag = "1")]
    pub mac: Vec<u8>,
    /// An encoded [`Purpose`].
    #[prost(bytes = "vec", tag = "2")]
    pub introduction: Vec<u8>,
}

/// Why a process comes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Purpose {
    /// To compute.
    Join(Newcomer),
    /// To see who is there.
    Look,
    /// To have the member of this rank leave.
    Drain(usize),
    /// To hold the rendezvous in its place.
    Replace,
}

/// The messages of a member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromMember {
    /// Stores `value` under `key`; the first write wins. The answer carries the same `id`.
    Set {
        /// Tells the request from others.
        id: u64,
        /// The name.
        key: String,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Waits until all `keys` are there, at most `limit`. The answers carry the same `id`.
    Get {
        /// Tells the request from others.
        id: u64,
        /// The names.
        keys: Vec<String>,
        /// How long to wait.
        limit: Duration,
    },
    /// A sign of life.
    Beat(Progress),
    /// A collective failed or timed out, of a generation or of the connection for it, with this symptom.
    Trouble(Progress, u64, String),
    /// The last message: the member has finished, or failed for this reason.
    Leave(Progress, Option<String>),
    /// In an elastic job: can take part in the next generation.
    Ready(Ready),
    /// In an elastic job: wants to leave.
    Drain,
    /// In an elastic job: has connected with those of this generation to come.
    Connected(u64),
}

impl FromMember {
    /// What the member that has `seat` tells the roster; the store is not the roster's business.
    pub fn events(self, seat: Seat) -> Vec<Event> {
        match self {
            Self::Beat(progress) => vec![Event::Beat(seat, progress)],
            Self::Trouble(progress, generation, symptom) => {
                vec![Event::Beat(seat, progress), Event::Trouble(seat, generation, symptom)]
            }
            Self::Leave(progress, failed) => vec![Event::Beat(seat, progress), Event::Left(seat, failed)],
            Self::Ready(ready) => vec![Event::Ready(seat, ready)],
            Self::Drain => vec![Event::Drain(seat)],
            Self::Connected(generation) => vec![Event::Connected(seat, generation)],
            Self::Set { .. } | Self::Get { .. } => Vec::new(),
        }
    }
}

/// The messages of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromService {
    /// The process is not admitted.
    Refusal(Refusal),
    /// Nobody came to the job yet.
    Nobody,
    /// Who is there, and what they are to do.
    Bulletin(Bulletin),
    /// The job is over, and why.
    Verdict(String),
    /// The answer to a beat.
    Alive,
    /// One value of a `Get`, in the order of its keys, since only each one fits an envelope; or, without bytes, the
    /// receipt for a `Set`.
    Value(u64, #[serde(with = "serde_bytes")] Vec<u8>),
    /// The `Set` or `Get` cannot be served, and why.
    Denied(u64, String),
}

/// The bytes of a message.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec(message).expect("plain data is always MessagePack")
}

/// The message of these bytes, or why there is none.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    rmp_serde::from_slice(bytes).map_err(|error| error.to_string())
}
