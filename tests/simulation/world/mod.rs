//! A whole elastic run in virtual time: one queue of events, one source of chance, the real policy and the real state
//! of members in the middle.
//!
//! `network` carries messages, `service` is a process that holds the roster, `election` elects one of several,
//! `session` and `member` are the two threads of a process of the run (`training`, `ending` and `ahead` parts of the
//! second), `engine` is the model of its collectives, `disk` its directory, `faults` what goes wrong, `judge` knows
//! what must hold at every event, and `limits` how long what may take.

mod ahead;
mod disk;
mod election;
mod ending;
mod engine;
mod faults;
mod judge;
mod limits;
mod member;
mod network;
mod service;
mod session;
mod training;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use disk::Disk;
use engine::{Engine, Key};
pub use faults::Plan;
use judge::Judge;
use member::Process;
use network::{Connection, Parcel};
use service::Service;

use super::election::Vote;
use super::member_state::Attempt;
use super::membership::Rules;
use super::{Terms, clock};
use crate::random::Random;

/// The time between two heartbeats, and when a silent member is lost.
const BEAT: u64 = 1_000;
const LOST: u64 = 10_000;
/// The time limit of a collective; ten times as long for the first of a generation.
const COLLECTIVE: u64 = 6_000;
const PATIENCE: u64 = 10;
/// How long a member may take to get ready.
const LIMIT: u64 = COLLECTIVE * PATIENCE;
/// How long to wait for the fewest members, or for the service.
const ELASTIC: u64 = 120_000;
const SETTLE: u64 = 200;

/// Something that happens.
#[derive(Debug, Clone)]
enum Event {
    /// A message reaches the service (`up`) or the member.
    Arrival {
        link: usize,
        up: bool,
        parcel: Parcel,
    },
    /// One end notices that the connection is closed.
    Closing {
        link: usize,
        up: bool,
    },
    /// The service sends its latest announcement.
    Flush {
        link: usize,
    },
    /// The service gives up the connection of a member that it removed.
    Dismissal {
        link: usize,
    },
    /// Of the service at an address.
    Tick {
        at: usize,
        service: u64,
    },
    ServiceStarts {
        at: usize,
        service: u64,
    },
    /// A claim reaches the service at an address, and its answer the claimant.
    Claim(election::Claim),
    Vote(election::Claim, Option<Vote>),
    /// A member: dials, has sent its introduction, stops waiting for an answer, sends a heartbeat.
    Dial {
        who: usize,
    },
    Introduced {
        who: usize,
        link: usize,
    },
    Unanswered {
        who: usize,
        link: usize,
    },
    Beat {
        who: usize,
        link: usize,
    },
    /// The thread that trains looks at what it waits for.
    Wake {
        who: usize,
    },
    /// It connects for a pending generation, and how that ended.
    Prepare {
        who: usize,
        attempt: Attempt,
    },
    Prepared {
        who: usize,
        attempt: Attempt,
        ok: bool,
    },
    /// It has computed, read or connected enough for its next collective.
    Arrive {
        who: usize,
        turn: u64,
    },
    /// A collective ended for one member.
    Collective {
        who: usize,
        key: Key,
        ok: bool,
    },
    Written {
        who: usize,
        write: u64,
    },
    Fault(faults::Fault),
    Calm,
    Operator,
}

pub struct World {
    now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    count: u64,
    random: Random,
    start: std::time::Instant,
    plan: Plan,
    processes: Vec<Process>,
    connections: Vec<Connection>,
    /// By address.
    services: Vec<Service>,
    /// Counts the services and the times that they lead.
    tenures: u64,
    /// Until when two services cannot reach each other.
    splits: BTreeMap<(usize, usize), u64>,
    engines: Vec<Engine>,
    /// Of the pending generations of each service: their size, and who has come to connect.
    prepared: BTreeMap<(u64, u64), (usize, BTreeSet<usize>)>,
    disk: Disk,
    judge: Judge,
    is_calm: bool,
    aloud: bool,
    /// Messages delivered, for the table of costs.
    pub messages: u64,
}

impl World {
    pub fn new(seed: u64, plan: Plan, aloud: bool) -> Self {
        clock::set(0);
        let random = Random::new(seed);
        let start = std::time::Instant::now();
        let services = (0..plan.addresses).map(|_| Service::default()).collect();
        let judge = Judge::new(plan.world, plan.steps * plan.epochs.min(1_000));
        Self {
            now: 0,
            queue: BTreeMap::new(),
            count: 0,
            random,
            start,
            plan,
            processes: Vec::new(),
            connections: Vec::new(),
            services,
            tenures: 0,
            splits: BTreeMap::new(),
            engines: Vec::new(),
            prepared: BTreeMap::new(),
            disk: Disk::default(),
            judge,
            is_calm: false,
            aloud,
            messages: 0,
        }
    }

    fn rules(&self) -> Rules {
        let time = Duration::from_millis;
        let Plan { min, max, world, .. } = self.plan;
        Rules {
            min,
            max,
            world,
            beat: time(BEAT),
            lost_after: time(LOST),
            elastic_timeout: time(ELASTIC),
            settle: time(SETTLE),
            ready_timeout: time(LIMIT),
            strict: false,
        }
    }

    fn terms() -> Terms {
        Terms { timeout: Duration::from_millis(LOST), beat: Duration::from_millis(BEAT) }
    }

    /// The time of the clock at an address, whose rate is not that of the others.
    fn instant(&self, at: usize) -> std::time::Instant {
        self.start + Duration::from_micros(self.now * self.plan.rates[at])
    }

    fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.queue.insert((time.max(self.now), self.count), event);
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    fn say(&self, line: impl FnOnce() -> String) {
        if self.aloud {
            println!("{:>9.3} s  {}", self.now as f64 / 1000.0, line());
        }
    }

    /// Runs the history until nobody is left, and panics where something does not hold.
    pub fn run(&mut self) {
        self.open();
        while let Some(((time, number), event)) = self.queue.pop_first() {
            self.now = time;
            clock::set(time);
            self.happen(number, event);
            self.judge_leaders();
            if self.is_calm && self.processes.iter().all(Process::is_over) && self.is_settled() {
                break;
            }
            self.judge_time();
        }
        self.judge_end();
    }

    /// Runs until `done`, or panics after `limit`; for measurements.
    pub fn run_until(&mut self, limit: u64, done: impl Fn(&Self) -> bool) -> u64 {
        let began = self.now;
        let mut looked = 0;
        // Looking at all members after each event would take long.
        while looked == self.now || !done(self) {
            looked = self.now;
            let Some(((time, number), event)) = self.queue.pop_first() else { panic!("nothing happens any more") };
            assert!(time < began + limit, "not done within {limit} ms");
            self.now = time;
            clock::set(time);
            self.happen(number, event);
        }
        self.now - began
    }

    fn happen(&mut self, number: u64, event: Event) {
        if let Some(wakes) = self.sleeper(&event).filter(|wakes| *wakes > self.now) {
            // It keeps its place among those that wait with it.
            self.queue.insert((wakes, number), event);
            return;
        }
        match event {
            Event::Arrival { link, up: true, parcel } => self.reach_service(link, parcel),
            Event::Arrival { link, up: false, parcel } => self.reach_member(link, parcel),
            Event::Closing { link, up } => self.notice(link, up),
            Event::Flush { link } => self.flush(link),
            Event::Dismissal { link } => self.dismiss(link),
            Event::Tick { at, service } => self.tick(at, service),
            Event::ServiceStarts { at, service } => self.start_service(at, service),
            Event::Claim(claim) => self.claimed(claim),
            Event::Vote(claim, vote) => self.voted(claim, vote),
            Event::Dial { who } => self.dial(who),
            Event::Introduced { who, link } => self.introduced(who, link),
            Event::Unanswered { who, link } => self.unanswered(who, link),
            Event::Beat { who, link } => self.beat(who, link),
            Event::Wake { who } => {
                self.processes[who].is_watched = false;
                self.judge_leaver(who);
                self.look(who);
            }
            Event::Prepare { who, attempt } => self.connect_ahead(who, attempt),
            Event::Prepared { who, attempt, ok } => self.connected(who, attempt, ok),
            Event::Arrive { who, turn } => self.arrive(who, turn),
            Event::Collective { who, key, ok } => self.collective(who, key, ok),
            Event::Written { who, write } => self.written(who, write),
            Event::Fault(fault) => self.suffer(fault),
            Event::Calm => self.calm_down(),
            Event::Operator => self.operate(),
        }
    }

    /// Until when the thread of a process that trains does nothing.
    fn idle(&self, who: usize) -> u64 {
        self.processes[who].wakes.max(self.processes[who].hangs.unwrap_or_default())
    }

    /// Until when the process that the event concerns is stopped.
    fn sleeper(&self, event: &Event) -> Option<u64> {
        let who = match event {
            Event::Arrival { link, up: false, .. } | Event::Closing { link, up: false } => self.connections[*link].who,
            Event::Dial { who } | Event::Introduced { who, .. } | Event::Unanswered { who, .. } => *who,
            Event::Beat { who, .. } | Event::Prepare { who, .. } | Event::Prepared { who, .. } => *who,
            Event::Wake { who } | Event::Arrive { who, .. } | Event::Collective { who, .. } => {
                return Some(self.idle(*who));
            }
            Event::Written { who, .. } => return Some(self.idle(*who)),
            Event::Arrival { link, .. } | Event::Closing { link, .. } | Event::Flush { link } => {
                return Some(self.services[self.connections[*link].at].wakes);
            }
            Event::Tick { at, .. } => return Some(self.services[*at].wakes),
            Event::Claim(claim) => return Some(self.services[claim.to].wakes),
            Event::Vote(claim, _) => return Some(self.services[claim.from].wakes),
            _ => return None,
        };
        Some(self.processes[who].wakes)
    }
}
