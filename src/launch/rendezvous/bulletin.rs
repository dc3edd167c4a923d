//! What the members of a job tell the [`roster`](super::roster), and what it tells them.
//!
//! A bulletin says everything that a member needs to know. Members tell what they hold and what they compute in, so
//! that the service can be restarted at any time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::placement::Block;
use super::refusal::Refusal;

/// One session of one member with the service; a member that reconnects gets a new one.
pub type Seat = u64;

/// What the job asks for.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The fewest members that compute.
    pub min: usize,
    /// The most members that compute; more are spares.
    pub max: usize,
    /// The number of replicas.
    pub world: usize,
    /// The time between two signs of life.
    pub beat: Duration,
    /// The silence after which a member is lost.
    pub lost_after: Duration,
    /// How long to wait for the fewest members.
    pub elastic_timeout: Duration,
    /// How long after an arrival to wait for more of them.
    pub settle: Duration,
    /// How long a member may take to get ready, or to connect with the others.
    pub patience: Duration,
    /// Membership is fixed: ranks are given, all must be there, and the first loss ends the job.
    pub strict: bool,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A process wants to be a member, or a member is back.
    Came(Seat, Newcomer),
    /// A sign of life.
    Beat(Seat, Progress),
    /// A member left a generation, and can take part in the next one.
    Ready(Seat, Ready),
    /// A member has connected with those of this generation to come.
    Connected(Seat, u64),
    /// A collective of this generation failed, or the connection of the one to come, with this symptom.
    Trouble(Seat, u64, String),
    /// A member wants to leave in good order.
    Drain(Seat),
    /// The member of this rank of the current generation is asked to leave.
    DrainRank(usize),
    /// A member finished the whole run, goes as announced, or failed for the reason given.
    Left(Seat, Option<String>),
    /// A session ended without a leave, and how, as in "its connection closed".
    Closed(Seat, String),
    /// Time went by.
    Tick,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Admit the process that came.
    Welcome,
    /// Send the process that came away.
    Refuse(Refusal),
    /// Tell all members.
    Announce(Bulletin),
    /// The job is over; tell all members why.
    Decide(String),
}

/// What state of the run a member holds; the newer one is the greater one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Standing {
    /// The generation of its last committed step; 0 if it holds nothing.
    pub generation: u64,
    /// The number of its last committed step.
    pub step: u64,
}

/// A numbered assignment of all replicas to members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assembly {
    /// From 1; 0 if there has been none.
    pub generation: u64,
    /// In rank order.
    pub blocks: Vec<Block>,
}

impl Assembly {
    /// Whether this is a generation in which `world` replicas are computed, each once.
    pub fn covers(&self, world: usize) -> bool {
        let mut next = 0;
        let follows = |block: &Block| {
            let start = std::mem::replace(&mut next, block.replicas.end);
            start == block.replicas.start && !block.replicas.is_empty()
        };
        self.generation > 0 && !self.blocks.is_empty() && self.blocks.iter().all(follows) && next == world
    }

    /// The rank of the member `id`, if it has a part.
    pub fn rank(&self, id: u64) -> Option<usize> {
        self.blocks.iter().position(|block| block.id == id)
    }
}

/// A process that wants to be a member, or is back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Newcomer {
    /// Unique to the process, and the same when it comes back.
    pub id: u64,
    /// The rank that its launcher gave it, where membership is fixed.
    pub rank: Option<usize>,
    /// Its machine.
    pub host: String,
    /// Its process id.
    pub process: u32,
    /// How many devices it can compute on, at least one.
    pub devices: usize,
    /// Its settings, which must be the same in the whole job.
    pub configuration: BTreeMap<String, String>,
    /// What it holds.
    pub standing: Standing,
    /// The greatest generation that it ever heard of; 0 if none.
    pub heard: u64,
    /// The generation it is computing in right now.
    pub computing: Option<Assembly>,
    /// Whether it wants to leave in good order.
    pub draining: bool,
    /// The members of the generation it computed in last, by id and with what people call them.
    pub peers: BTreeMap<u64, String>,
}

/// A member has left a generation, and can take part in the next one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// The generation that it left.
    pub generation: u64,
    /// What it holds now.
    pub standing: Standing,
    /// How many devices it can compute on now.
    pub devices: usize,
    /// Why it left without being asked to, such as a device that failed.
    pub reason: Option<String>,
}

/// Where a member is, for people.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Such as `step 12, gradient all-reduce`.
    pub activity: String,
    /// The step it computes.
    pub step: u64,
    /// Its throughput.
    pub images_per_second: f64,
}

/// All that members need to know. Each bulletin replaces the one before, so that only the latest matters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bulletin {
    /// The current generation, or the last one; 0 if there has been none.
    pub generation: u64,
    /// Whether it is computed.
    pub phase: Phase,
    /// The causes of the latest change, in one line.
    pub why: String,
    /// Who is there: those with a part in rank order, then the others in order of arrival.
    pub members: Vec<Entry>,
    /// The generation to come, whose members connect with each other while the current one is computed.
    pub prospect: Option<Assembly>,
}

impl Bulletin {
    /// The generation as far as its members are there: all of it when it begins.
    pub fn assembly(&self) -> Assembly {
        let parts = self.members.iter().filter(|entry| !entry.replicas.is_empty());
        let block = |entry: &Entry| Block { id: entry.id, devices: entry.devices, replicas: entry.replicas.clone() };
        Assembly { generation: self.generation, blocks: parts.map(block).collect() }
    }
}

/// The state of the current generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// There are too few members for the next generation. Nothing more keeps a member that wants to leave.
    Waiting,
    /// Its members compute. A member that wants to leave and has no part in it goes.
    Running,
    /// Its members finish their step, at least the first one, which hands a state over, and get ready. This may be the
    /// first that a member hears of the generation.
    Ending,
    /// It is broken off: its members get ready at once.
    Over,
    /// It was the last one: the run is complete.
    Complete,
}

/// A member, as the others see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Unique to the process.
    pub id: u64,
    /// Its machine.
    pub host: String,
    /// Its process id.
    pub process: u32,
    /// How many devices it has, or uses if it has a part.
    pub devices: usize,
    /// Its replicas in the current or last generation; empty if it has no part.
    pub replicas: Range<usize>,
    /// Whether it is about to leave.
    pub draining: bool,
    /// Where it is.
    pub progress: Progress,
}
