//! The thread of a member that trains: what `client.rs`, `elastic_member.rs`, `trainer/elastic.rs` and the replicas do,
//! with the real state of the member for every decision.

use std::collections::{BTreeSet, VecDeque};

use super::engine::Key;
use super::{ELASTIC, Event, World};
use crate::checkpoint::Store;
use crate::rendezvous::clock::Instant;
use crate::rendezvous::member_state::{Attempt, End, Instruction, MemberState};
use crate::rendezvous::membership::{Placement, ProcessInfo, Ready, StateVersion};
use crate::rendezvous::shared_state::SharedState;
use crate::rendezvous::wire::FromMember;

const POLL: u64 = 100;

/// The weights after some steps: a chain over the samples of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trained {
    pub step: usize,
    /// Epochs that are validated and closed.
    pub epoch: usize,
    pub weights: u64,
}

#[derive(Debug, Clone, Copy)]
pub enum Link {
    Down,
    Dialing { link: usize, sent: Instant },
    Up { link: usize, unanswered: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Joining,
    /// Waits for its next generation.
    Next {
        left: u64,
        is_saved: bool,
    },
    /// Saves what it holds, since nobody computes or it leaves alone.
    Keeping {
        left: u64,
    },
    /// Works until it comes to a collective.
    Working(Key),
    In(Key),
    /// Has the state of a generation, and waits for its lease.
    Beginning {
        is_from_disk: bool,
    },
    /// Has the result of a step, and waits for its lease.
    Confirming {
        ends: bool,
    },
    /// The checkpoint before must be written first.
    Slot {
        ends: bool,
    },
    /// The generation is over, and its own checkpoint must be written first.
    Parting,
    /// The run is done, and the last checkpoint must be written first.
    Saving,
    /// Waits for the others at the end of the run.
    Closing {
        request: u64,
        session: u64,
        since: Option<u64>,
    },
    Over,
}

/// The version of a state, and its epoch.
pub type Held = (StateVersion, usize);

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Complete(Option<Trained>),
    Late,
    Left,
    Failed(String),
    Lost(String),
    Killed,
}

pub struct Process {
    pub id: u64,
    pub devices: usize,
    /// Until when its network is cut, and it is stopped.
    pub cut: u64,
    /// Until when it cannot reach one address.
    pub split: (usize, u64),
    /// The address of the service that it tries, or has a session with.
    pub address: usize,
    /// Since it had one.
    pub attempts: usize,
    pub wakes: u64,
    /// Until when its thread that trains waits for a device or a disk.
    pub hangs: Option<u64>,
    pub shared: SharedState,
    pub commands: VecDeque<FromMember>,
    pub link: Link,
    pub introduction: Option<ProcessInfo>,
    pub is_patient: bool,
    /// The requests to the store that were answered.
    pub answers: BTreeSet<u64>,
    pub requests: u64,
    pub stage: Stage,
    /// Distinguishes what it works at from what it worked at before.
    pub turn: u64,
    pub generation: u64,
    pub holds: StateVersion,
    pub state: Option<Trained>,
    /// Of a step that is not committed yet.
    pub result: Option<Trained>,
    /// The steps that it took part in, for the log.
    pub reports: BTreeSet<usize>,
    pub is_first_step: bool,
    pub engine: Option<usize>,
    /// Whether it has a share in the lock of the run's directory.
    pub has_lock: bool,
    /// If it was the first member of a generation.
    pub store: Option<Store>,
    /// The checkpoint that its thread writes.
    pub write: Option<u64>,
    pub failing_devices: usize,
    pub attempt: Option<Attempt>,
    /// The attempts to connect whose result it has told.
    pub reported: BTreeSet<(u64, u64)>,
    pub is_watched: bool,
    pub outcome: Option<Outcome>,
}

impl Process {
    pub fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// Whether it has committed a step in `generation`.
    pub fn is_training(&self, generation: u64) -> bool {
        let is_there = self.shared.state.lock().own.computing.as_ref().is_some_and(|it| it.generation == generation);
        is_there && self.generation == generation && !self.is_first_step
    }

    /// The generation it computes in, as it knows.
    pub fn placement(&self) -> Option<Placement> {
        self.shared.state.lock().own.computing.clone()
    }
}

impl World {
    pub fn start(&mut self, devices: usize) -> usize {
        let who = self.processes.len();
        let id = who as u64 + 1;
        // Some have not timed their devices.
        let (host, process, nanoseconds) = (format!("h{id}"), id as u32, id % 5 * 100);
        let info = ProcessInfo { id, host, process, devices, nanoseconds, ..ProcessInfo::default() };
        let limit = std::time::Duration::from_millis(ELASTIC);
        self.processes.push(Process {
            id,
            devices,
            cut: 0,
            split: (0, 0),
            address: 0,
            attempts: 0,
            wakes: 0,
            hangs: None,
            shared: SharedState::new(info, &Self::terms(), "service", limit),
            commands: VecDeque::new(),
            link: Link::Down,
            introduction: None,
            is_patient: false,
            answers: BTreeSet::new(),
            requests: 0,
            stage: Stage::Joining,
            turn: 0,
            generation: 0,
            holds: StateVersion::default(),
            state: None,
            result: None,
            reports: BTreeSet::new(),
            is_first_step: true,
            engine: None,
            has_lock: false,
            store: None,
            write: None,
            failing_devices: 0,
            attempt: None,
            reported: BTreeSet::new(),
            is_watched: false,
            outcome: None,
        });
        self.say(|| format!("process {id} starts with {devices} devices"));
        self.dial(who);
        self.look(who);
        who
    }

    pub(super) fn end(&mut self, who: usize, outcome: Outcome) {
        self.say(|| format!("process {} ends: {outcome:?}", self.processes[who].id));
        let process = &mut self.processes[who];
        (process.outcome, process.stage) = (Some(outcome), Stage::Over);
        let link = process.link;
        if let Link::Up { link, .. } | Link::Dialing { link, .. } = link {
            self.close(link, false);
        }
        self.close_engine(who);
    }

    /// Leaves the others with these words, and ends.
    pub(super) fn leave(&mut self, who: usize, failed: Option<String>, outcome: Outcome) {
        let process = &mut self.processes[who];
        let progress = process.shared.state.lock().progress.clone();
        process.shared.end(End::Left);
        self.command(who, FromMember::Leave(progress, failed));
        self.end(who, outcome);
    }

    /// Looks at what it waits for, now and again after a while.
    pub(super) fn look(&mut self, who: usize) {
        if self.processes[who].is_over() {
            return;
        }
        if !std::mem::replace(&mut self.processes[who].is_watched, true) {
            self.after(POLL, Event::Wake { who });
        }
        self.prepare(who);
        if self.idle(who) > self.now {
            return;
        }
        match self.processes[who].stage {
            Stage::Joining => match self.wait(who, |state| state.is_admitted().then_some(())) {
                Some(Ok(())) => self.part(who, None),
                Some(Err(why)) => self.end(who, Outcome::Lost(why)),
                None => {}
            },
            Stage::Next { left, is_saved } => self.follow(who, left, is_saved),
            Stage::Working(_) | Stage::In(_) if self.is_disturbed(who) => self.fail(who, "the generation is over"),
            Stage::Confirming { ends } => match self.wait(who, MemberState::confirm) {
                Some(Ok(Ok(()))) => self.commit(who, ends),
                Some(_) => self.fail(who, "no lease"),
                None => {}
            },
            Stage::Beginning { is_from_disk } => match self.wait(who, MemberState::confirm) {
                Some(Ok(Ok(()))) => self.begin(who, is_from_disk),
                Some(_) => self.fail(who, "no lease"),
                None => {}
            },
            Stage::Closing { request, session, since } => self.close_run(who, request, session, since),
            _ => {}
        }
    }

    /// What a wait of its thread for `find` would return now.
    pub(super) fn wait<T>(&self, who: usize, find: impl Fn(&MemberState) -> Option<T>) -> Option<Result<T, String>> {
        let shared = &self.processes[who].shared;
        let mut state = shared.state.lock();
        shared.look(&mut state, find).map(|found| found.map_err(|error| error.to_string()))
    }

    pub(super) fn is_disturbed(&self, who: usize) -> bool {
        self.processes[who].shared.state.lock().end_reason().is_some()
    }

    pub(super) fn follow(&mut self, who: usize, left: u64, is_saved: bool) {
        match self.wait(who, |state| state.instruction(left, is_saved)) {
            None => {}
            Some(Err(why)) => {
                if let Some(state) = self.processes[who].state {
                    self.save_at_once(who, state);
                }
                self.leave(who, Some(why.clone()), Outcome::Lost(why));
            }
            Some(Ok(Instruction::Enter(view))) => self.enter(who, &view),
            Some(Ok(Instruction::Missed(generation))) => {
                self.processes[who].stage = Stage::Next { left: generation, is_saved };
                self.report(who, generation, None);
            }
            Some(Ok(Instruction::Save)) => {
                self.processes[who].stage = Stage::Keeping { left };
                match self.processes[who].state {
                    Some(state) => self.write(who, state, true),
                    None => self.kept(who, left),
                }
            }
            Some(Ok(Instruction::Leave)) => {
                self.processes[who].shared.state.lock().end = Some(End::Left);
                self.leave(who, None, Outcome::Left);
            }
            Some(Ok(Instruction::Finish)) => self.leave(who, None, Outcome::Late),
        }
    }

    pub(super) fn kept(&mut self, who: usize, left: u64) {
        self.processes[who].stage = Stage::Next { left, is_saved: true };
        self.report(who, left, None);
        self.look(who);
    }

    pub(super) fn report(&mut self, who: usize, generation: u64, reason: Option<String>) {
        let Process { holds, devices, .. } = self.processes[who];
        self.command(who, FromMember::Ready(Ready { generation, holds, devices, reason }));
    }

    /// Stops computing, and waits for the next generation.
    pub(super) fn part(&mut self, who: usize, failure: Option<String>) {
        let process = &mut self.processes[who];
        if process.generation > 0 {
            let generation = process.generation;
            let version = |state: Trained| StateVersion { generation, step: state.step as u64 };
            process.holds = process.state.map(version).unwrap_or_default();
        }
        let left = process.shared.state.lock().stop_computing(process.holds, process.devices);
        process.turn += 1;
        process.stage = Stage::Next { left, is_saved: false };
        self.report(who, left, failure);
        self.look(who);
    }

    /// The end of a generation: its own checkpoint is written before it goes on.
    pub(super) fn settle(&mut self, who: usize) {
        if self.processes[who].write.is_some() {
            self.processes[who].stage = Stage::Parting;
        } else {
            self.part(who, None);
        }
    }

    /// The generation has failed for this member.
    pub(super) fn fail(&mut self, who: usize, symptom: &str) {
        let generation = self.processes[who].placement().map_or(0, |it| it.generation);
        self.say(|| format!("process {} fails in generation {generation}: {symptom}", self.processes[who].id));
        self.close_engine(who);
        let progress = self.processes[who].shared.state.lock().progress.clone();
        self.command(who, FromMember::Trouble(progress, generation, symptom.into()));
        self.settle(who);
    }
}
