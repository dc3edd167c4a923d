//! What travels between a member and the service: protobuf messages, written as Rust types.
//!
//! Both directions carry [`Envelope`]s. A body is decoded only after its envelope was found authentic (see
//! [`seal`](super::seal)), but for the greetings of the [`handshake`](super::handshake), which come before there is a
//! key. Field numbers are part of [`PROTOCOL`]: whoever changes one raises it.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

use super::Introduction;
use super::elastic_wire::{Bulletin, Ready};

/// The version of these messages and of the handshake.
pub const PROTOCOL: u32 = 4;
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
    /// An encoded [`ClientBody`] or [`ServerBody`].
    #[prost(bytes = "vec", tag = "2")]
    pub body: Vec<u8>,
    /// HMAC-SHA256 over direction, sequence and body; during the handshake empty, or over a refusal and the greeting that
    /// it answers.
    #[prost(bytes = "vec", tag = "3")]
    pub mac: Vec<u8>,
}

/// What a member sends.
#[derive(Clone, PartialEq, Message)]
pub struct ClientBody {
    /// The message; absent if it is of a kind that this version does not know.
    #[prost(oneof = "FromMember", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub message: Option<FromMember>,
}

/// The messages of a member.
#[derive(Clone, PartialEq, Oneof)]
pub enum FromMember {
    /// The first message.
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// The answer to a challenge.
    #[prost(message, tag = "2")]
    Proof(Proof),
    /// Stores a value.
    #[prost(message, tag = "3")]
    Set(Set),
    /// Asks for values.
    #[prost(message, tag = "4")]
    Get(Get),
    /// A sign of life.
    #[prost(message, tag = "5")]
    Beat(Activity),
    /// A collective failed or timed out.
    #[prost(message, tag = "6")]
    Trouble(Trouble),
    /// The last message.
    #[prost(message, tag = "7")]
    Leave(Leave),
    /// In an elastic job: can take part in the next generation.
    #[prost(message, tag = "8")]
    Ready(Ready),
    /// In an elastic job: wants to leave.
    #[prost(bool, tag = "9")]
    Drain(bool),
    /// In an elastic job: has connected with those of this generation to come.
    #[prost(uint64, tag = "10")]
    Connected(u64),
}

/// What the service sends.
#[derive(Clone, PartialEq, Message)]
pub struct ServerBody {
    /// The message; absent if it is of a kind that this version does not know.
    #[prost(oneof = "FromService", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub message: Option<FromService>,
}

/// The messages of the service.
#[derive(Clone, PartialEq, Oneof)]
pub enum FromService {
    /// The service's proof, and what the member has to prove.
    #[prost(message, tag = "1")]
    Challenge(Challenge),
    /// The member is not admitted.
    #[prost(message, tag = "2")]
    Refusal(Refusal),
    /// The member is admitted; the ranks named here are not there yet (empty: none is missing).
    #[prost(string, tag = "3")]
    Waiting(String),
    /// Everybody is there.
    #[prost(message, tag = "4")]
    Layout(Layout),
    /// The answer to a beat.
    #[prost(message, tag = "5")]
    Alive(Alive),
    /// One value of a `Get`, or (without a value) the news that a `Set` was kept.
    #[prost(message, tag = "6")]
    Value(Value),
    /// A `Set` or `Get` that cannot be served.
    #[prost(message, tag = "7")]
    Denied(Denied),
    /// The job is over, and why.
    #[prost(string, tag = "8")]
    Verdict(String),
    /// In an elastic job: who is there, and what they are to do.
    #[prost(message, tag = "9")]
    Bulletin(Bulletin),
}

/// Who wants to join what.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// [`PROTOCOL`] of the member.
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

/// The member's answer to a [`Challenge`].
#[derive(Clone, PartialEq, Message)]
pub struct Proof {
    /// Proves that the member knows the secret, and that it wrote `introduction`.
    #[prost(bytes = "vec", tag = "1")]
    pub mac: Vec<u8>,
    /// An encoded [`Person`].
    #[prost(bytes = "vec", tag = "2")]
    pub introduction: Vec<u8>,
}

/// An [`Introduction`] on the wire.
#[derive(Clone, PartialEq, Message)]
pub struct Person {
    /// Its rank.
    #[prost(uint64, tag = "1")]
    pub rank: u64,
    /// Its machine.
    #[prost(string, tag = "2")]
    pub host: String,
    /// Its process id.
    #[prost(uint32, tag = "3")]
    pub process: u32,
    /// Its devices.
    #[prost(uint64, tag = "4")]
    pub devices: u64,
    /// Its settings; left out of a [`Layout`], where everybody's are the same.
    #[prost(btree_map = "string, string", tag = "5")]
    pub configuration: BTreeMap<String, String>,
}

/// All members in rank order.
#[derive(Clone, PartialEq, Message)]
pub struct Layout {
    /// One for each rank.
    #[prost(message, repeated, tag = "1")]
    pub members: Vec<Person>,
}

/// Why a member is not admitted.
#[derive(Clone, PartialEq, Message)]
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

/// Stores `value` under `key`; the first write wins.
#[derive(Clone, PartialEq, Message)]
pub struct Set {
    /// Comes back with the answer.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The name.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub value: Vec<u8>,
}

/// Waits until all `keys` are there.
#[derive(Clone, PartialEq, Message)]
pub struct Get {
    /// Comes back with the answers.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The names.
    #[prost(string, repeated, tag = "2")]
    pub keys: Vec<String>,
    /// How long to wait, in milliseconds.
    #[prost(uint64, tag = "3")]
    pub limit: u64,
}

/// What a process is doing.
#[derive(Clone, PartialEq, Message)]
pub struct Activity {
    /// For people, such as `step 12, gradient all-reduce`.
    #[prost(string, tag = "1")]
    pub text: String,
    /// Grows by one with every collective, alike on all ranks; in an elastic job the steps done.
    #[prost(uint64, tag = "2")]
    pub count: u64,
    /// Its throughput, in an elastic job.
    #[prost(double, tag = "3")]
    pub images_per_second: f64,
}

/// A collective failed or timed out.
#[derive(Clone, PartialEq, Message)]
pub struct Trouble {
    /// Which one.
    #[prost(message, optional, tag = "1")]
    pub activity: Option<Activity>,
    /// What the engine said.
    #[prost(string, tag = "2")]
    pub symptom: String,
    /// In an elastic job: the generation whose collective or connection it was.
    #[prost(uint64, tag = "3")]
    pub generation: u64,
}

/// The last word of a member.
#[derive(Clone, PartialEq, Message)]
pub struct Leave {
    /// Why it failed; absent if it has finished.
    #[prost(string, optional, tag = "1")]
    pub failed: Option<String>,
    /// Where it was when it left.
    #[prost(message, optional, tag = "2")]
    pub activity: Option<Activity>,
}

/// The answer to a beat.
#[derive(Clone, PartialEq, Message)]
pub struct Alive {}

/// One value, or the receipt for a `Set`.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// Whose request this answers.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The bytes: values of a `Get` come one by one in the order of its keys, since only each one fits an envelope.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// Why a request cannot be served.
#[derive(Clone, PartialEq, Message)]
pub struct Denied {
    /// Whose request this answers.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// For people.
    #[prost(string, tag = "2")]
    pub reason: String,
}

impl From<FromMember> for ClientBody {
    fn from(message: FromMember) -> Self {
        Self { message: Some(message) }
    }
}

impl From<FromService> for ServerBody {
    fn from(message: FromService) -> Self {
        Self { message: Some(message) }
    }
}

impl From<&Introduction> for Person {
    fn from(it: &Introduction) -> Self {
        let configuration = it.configuration.clone();
        Self {
            rank: it.rank as u64,
            host: it.host.clone(),
            process: it.process,
            devices: it.devices as u64,
            configuration,
        }
    }
}

impl From<Person> for Introduction {
    fn from(it: Person) -> Self {
        // A rank that does not fit is out of every range, and refused as such.
        let rank = usize::try_from(it.rank).unwrap_or(usize::MAX);
        let devices = usize::try_from(it.devices).unwrap_or(usize::MAX);
        Self { rank, host: it.host, process: it.process, devices, configuration: it.configuration }
    }
}
