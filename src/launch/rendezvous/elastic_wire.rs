//! What travels in an elastic job beside the messages of [`wire`](super::wire): protobuf messages, and what they mean.
//!
//! Numbers that do not fit where they go become the nearest ones that do; the roster refuses what makes no sense.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};

use super::bulletin;
use super::placement;
use super::wire::Activity;

/// What a process says of itself when it comes to an elastic job.
#[derive(Clone, PartialEq, Message)]
pub struct Visit {
    /// Absent if it is of a kind that this version does not know.
    #[prost(oneof = "Purpose", tags = "1, 2, 3, 4")]
    pub purpose: Option<Purpose>,
}

/// Why a process comes.
#[derive(Clone, PartialEq, Oneof)]
pub enum Purpose {
    /// To compute.
    #[prost(message, tag = "1")]
    Join(Newcomer),
    /// To see who is there.
    #[prost(bool, tag = "2")]
    Look(bool),
    /// To have the member of this rank leave.
    #[prost(uint64, tag = "3")]
    Drain(u64),
    /// To hold the rendezvous in its place.
    #[prost(bool, tag = "4")]
    Replace(bool),
}

/// A [`bulletin::Newcomer`].
#[derive(Clone, PartialEq, Message)]
pub struct Newcomer {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    host: String,
    #[prost(uint32, tag = "3")]
    process: u32,
    #[prost(uint64, tag = "4")]
    devices: u64,
    #[prost(btree_map = "string, string", tag = "5")]
    configuration: BTreeMap<String, String>,
    #[prost(message, optional, tag = "6")]
    standing: Option<Standing>,
    #[prost(uint64, tag = "7")]
    heard: u64,
    #[prost(message, optional, tag = "8")]
    computing: Option<Assembly>,
    #[prost(bool, tag = "9")]
    draining: bool,
    #[prost(btree_map = "uint64, string", tag = "10")]
    peers: BTreeMap<u64, String>,
}

/// A [`bulletin::Standing`].
#[derive(Clone, Copy, PartialEq, Message)]
struct Standing {
    #[prost(uint64, tag = "1")]
    generation: u64,
    #[prost(uint64, tag = "2")]
    step: u64,
}

/// A [`bulletin::Assembly`].
#[derive(Clone, PartialEq, Message)]
struct Assembly {
    #[prost(uint64, tag = "1")]
    generation: u64,
    #[prost(message, repeated, tag = "2")]
    blocks: Vec<Block>,
}

/// A [`placement::Block`].
#[derive(Clone, Copy, PartialEq, Message)]
struct Block {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    devices: u64,
    #[prost(uint64, tag = "3")]
    start: u64,
    #[prost(uint64, tag = "4")]
    end: u64,
}

/// A [`bulletin::Ready`].
#[derive(Clone, PartialEq, Message)]
pub struct Ready {
    #[prost(uint64, tag = "1")]
    generation: u64,
    #[prost(message, optional, tag = "2")]
    standing: Option<Standing>,
    #[prost(uint64, tag = "3")]
    devices: u64,
    #[prost(string, optional, tag = "4")]
    reason: Option<String>,
}

/// A [`bulletin::Bulletin`].
#[derive(Clone, PartialEq, Message)]
pub struct Bulletin {
    #[prost(uint64, tag = "1")]
    generation: u64,
    #[prost(enumeration = "Phase", tag = "2")]
    phase: i32,
    #[prost(string, tag = "3")]
    why: String,
    #[prost(message, repeated, tag = "4")]
    members: Vec<Entry>,
    #[prost(message, optional, tag = "5")]
    prospect: Option<Assembly>,
}

/// A [`bulletin::Phase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
enum Phase {
    Waiting = 0,
    Running = 1,
    Ending = 2,
    Over = 3,
    Complete = 4,
}

/// A [`bulletin::Entry`].
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    host: String,
    #[prost(uint32, tag = "3")]
    process: u32,
    #[prost(uint64, tag = "4")]
    devices: u64,
    #[prost(uint64, tag = "5")]
    start: u64,
    #[prost(uint64, tag = "6")]
    end: u64,
    #[prost(bool, tag = "7")]
    draining: bool,
    #[prost(message, optional, tag = "8")]
    activity: Option<Activity>,
}

fn small(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl From<bulletin::Standing> for Standing {
    fn from(it: bulletin::Standing) -> Self {
        Self { generation: it.generation, step: it.step }
    }
}

impl From<Standing> for bulletin::Standing {
    fn from(it: Standing) -> Self {
        Self { generation: it.generation, step: it.step }
    }
}

impl From<bulletin::Assembly> for Assembly {
    fn from(it: bulletin::Assembly) -> Self {
        let block = |it: placement::Block| Block {
            id: it.id,
            devices: it.devices as u64,
            start: it.replicas.start as u64,
            end: it.replicas.end as u64,
        };
        Self { generation: it.generation, blocks: it.blocks.into_iter().map(block).collect() }
    }
}

impl From<Assembly> for bulletin::Assembly {
    fn from(it: Assembly) -> Self {
        let block = |it: Block| placement::Block {
            id: it.id,
            devices: small(it.devices),
            replicas: small(it.start)..small(it.end),
        };
        Self { generation: it.generation, blocks: it.blocks.into_iter().map(block).collect() }
    }
}

impl From<bulletin::Newcomer> for Newcomer {
    fn from(it: bulletin::Newcomer) -> Self {
        Self {
            id: it.id,
            host: it.host,
            process: it.process,
            devices: it.devices as u64,
            configuration: it.configuration,
            standing: Some(it.standing.into()),
            heard: it.heard,
            computing: it.computing.map(Into::into),
            draining: it.draining,
            peers: it.peers,
        }
    }
}

impl From<Newcomer> for bulletin::Newcomer {
    fn from(it: Newcomer) -> Self {
        Self {
            id: it.id,
            host: it.host,
            process: it.process,
            devices: small(it.devices),
            configuration: it.configuration,
            standing: it.standing.unwrap_or_default().into(),
            heard: it.heard,
            computing: it.computing.map(Into::into),
            draining: it.draining,
            peers: it.peers,
        }
    }
}

impl From<bulletin::Ready> for Ready {
    fn from(it: bulletin::Ready) -> Self {
        let standing = Some(it.standing.into());
        Self { generation: it.generation, standing, devices: it.devices as u64, reason: it.reason }
    }
}

impl From<Ready> for bulletin::Ready {
    fn from(it: Ready) -> Self {
        let standing = it.standing.unwrap_or_default().into();
        Self { generation: it.generation, standing, devices: small(it.devices), reason: it.reason }
    }
}

impl From<Activity> for bulletin::Progress {
    fn from(it: Activity) -> Self {
        Self { activity: it.text, step: it.count, images_per_second: it.images_per_second }
    }
}

impl From<bulletin::Progress> for Activity {
    fn from(it: bulletin::Progress) -> Self {
        Self { text: it.activity, count: it.step, images_per_second: it.images_per_second }
    }
}

impl From<bulletin::Bulletin> for Bulletin {
    fn from(it: bulletin::Bulletin) -> Self {
        let phase = match it.phase {
            bulletin::Phase::Waiting => Phase::Waiting,
            bulletin::Phase::Running => Phase::Running,
            bulletin::Phase::Ending => Phase::Ending,
            bulletin::Phase::Over => Phase::Over,
            bulletin::Phase::Complete => Phase::Complete,
        };
        let entry = |it: bulletin::Entry| Entry {
            id: it.id,
            host: it.host,
            process: it.process,
            devices: it.devices as u64,
            start: it.replicas.start as u64,
            end: it.replicas.end as u64,
            draining: it.draining,
            activity: Some(it.progress.into()),
        };
        let members = it.members.into_iter().map(entry).collect();
        let prospect = it.prospect.map(Into::into);
        Self { generation: it.generation, phase: phase.into(), why: it.why, members, prospect }
    }
}

impl From<Bulletin> for bulletin::Bulletin {
    fn from(it: Bulletin) -> Self {
        let phase = match it.phase() {
            Phase::Waiting => bulletin::Phase::Waiting,
            Phase::Running => bulletin::Phase::Running,
            Phase::Ending => bulletin::Phase::Ending,
            Phase::Over => bulletin::Phase::Over,
            Phase::Complete => bulletin::Phase::Complete,
        };
        let entry = |it: Entry| bulletin::Entry {
            id: it.id,
            host: it.host,
            process: it.process,
            devices: small(it.devices),
            replicas: small(it.start)..small(it.end),
            draining: it.draining,
            progress: it.activity.unwrap_or_default().into(),
        };
        let members = it.members.into_iter().map(entry).collect();
        let prospect = it.prospect.map(Into::into);
        Self { generation: it.generation, phase, why: it.why, members, prospect }
    }
}
