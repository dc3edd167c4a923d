//! The events and actions of the [`roster`](super::roster).
//!
//! A view holds everything that a member needs to know. Members report what they hold and in which generation they
//! compute, so that the service can be restarted at any time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::placement::Block;
use super::refusal::Refusal;
pub use crate::status::{MemberStatus, Progress, StateVersion};

/// The most processes one job may have: the list of all of them must fit into one message.
pub const MOST_MEMBERS: usize = 2048;
/// How many heartbeats may be late before a member counts as late.
pub(super) const LATE_BEATS: u32 = 3;

/// How long an answered heartbeat is a lease, if a member without one is lost after `lost_after`.
pub(super) fn lease(lost_after: Duration) -> Duration {
    lost_after * 2 / 3
}

/// Identifies one session of one member; a member that reconnects gets a new one.
pub type SessionId = u64;

/// The requirements and time limits of a job.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The fewest members that compute.
    pub min: usize,
    /// The most members that compute; more are kept in reserve.
    pub max: usize,
    pub world: usize,
    /// The time between two heartbeats.
    pub beat: Duration,
    /// A member without a heartbeat for longer is lost.
    pub lost_after: Duration,
    /// How long to wait for `min` members.
    pub elastic_timeout: Duration,
    /// How long to wait for more members after one has joined.
    pub settle: Duration,
    /// How long a member may take to get ready, or to connect with the others.
    pub ready_timeout: Duration,
    /// Whether membership is fixed: ranks are given, all members must join, and the first loss ends the job.
    pub strict: bool,
}

#[derive(Debug, Clone)]
pub enum Event {
    /// A process wants to join, or a member has reconnected.
    Joined(SessionId, ProcessInfo),
    Beat(SessionId, Progress),
    /// A member has left a generation and can take part in the next one.
    Ready(SessionId, Ready),
    Connected(SessionId, u64),
    /// A collective of this generation, or connecting for it, failed with this symptom.
    Trouble(SessionId, u64, String),
    Drain(SessionId),
    /// The member of this rank of the current generation is asked to leave.
    DrainRank(usize),
    /// A member has finished the run, leaves in good order, or failed for this reason.
    Left(SessionId, Option<String>),
    /// A session ended without a leave, and how, as in "its connection closed".
    Closed(SessionId, String),
    Tick,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Welcome,
    Refuse(Refusal),
    Announce(MembershipView),
    /// The job is over; send the reason to all members.
    Decide(String),
}

/// A numbered assignment of all replicas to members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// From 1; 0 if there has been none.
    pub generation: u64,
    pub blocks: Vec<Block>,
}

impl Placement {
    /// Whether the blocks cover `world` replicas, each once.
    pub fn covers(&self, world: usize) -> bool {
        let mut next = 0;
        let follows = |block: &Block| {
            let start = std::mem::replace(&mut next, block.replicas.end);
            start == block.replicas.start && !block.replicas.is_empty()
        };
        self.generation > 0 && !self.blocks.is_empty() && self.blocks.iter().all(follows) && next == world
    }

    /// The rank of the member `id`, if it has replicas.
    pub fn rank(&self, id: u64) -> Option<usize> {
        self.blocks.iter().position(|block| block.id == id)
    }
}

/// What a process reports when it joins or reconnects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessInfo {
    pub id: u64,
    /// The rank from its launcher, if membership is fixed.
    pub rank: Option<usize>,
    pub host: String,
    pub process: u32,
    /// How many devices it can compute on, at least one.
    pub devices: usize,
    /// What a replica takes on one of them, if it has been timed; else 0.
    pub nanoseconds: u64,
    /// Its settings, which must be the same in the whole job.
    pub configuration: BTreeMap<String, String>,
    pub holds: StateVersion,
    /// The greatest generation that it has seen; 0 if none.
    pub latest_generation: u64,
    pub computing: Option<Placement>,
    pub draining: bool,
    /// The members of the last generation it computed in: names by id.
    pub peers: BTreeMap<u64, String>,
}

/// A member has left a generation and can take part in the next one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    pub generation: u64,
    pub holds: StateVersion,
    /// How many devices it can compute on now.
    pub devices: usize,
    /// Why it left without a request, such as a device that failed.
    pub reason: Option<String>,
}

/// The state of the job for its members; each view replaces the one before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MembershipView {
    /// The current generation, or the last one; 0 if there has been none.
    pub generation: u64,
    pub phase: Phase,
    /// The causes of the latest change, in one line.
    pub why: String,
    /// Those with replicas in rank order, then the others in order of arrival.
    pub members: Vec<MemberStatus>,
    /// The pending generation: its members connect with each other while the current one computes.
    pub pending: Option<Placement>,
}

impl MembershipView {
    pub fn member(&self, id: u64) -> Option<&MemberStatus> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The members with replicas, in rank order.
    pub fn parts(&self) -> impl Iterator<Item = &MemberStatus> {
        self.members.iter().filter(|member| member.has_part())
    }

    /// The placement of the generation; after a loss, of its remaining members.
    pub fn placement(&self) -> Placement {
        let block = |it: &MemberStatus| Block { id: it.id, devices: it.devices, replicas: it.replicas.clone() };
        Placement { generation: self.generation, blocks: self.parts().map(block).collect() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// There are too few members for the next generation; a member may leave at once.
    Waiting,
    /// Its members compute. A member without replicas may leave.
    Running,
    /// Its members finish their step and get ready; at least the first step is computed, to hand a state over. A member
    /// may see a generation in this phase first.
    Ending,
    /// It is broken off: its members get ready at once.
    Over,
    Complete,
}
