//! What goes wrong: drawn from the seed, as is which kinds of it a history has at all.

use std::ops::RangeInclusive;

use super::member::{Link, Outcome, Process};
use super::{Event, LIMIT, LOST, World};
use crate::random::Random;
use crate::rendezvous::member_state::MemberState;
use crate::rendezvous::membership::{Event as Told, Progress};
use crate::rendezvous::wire::FromMember;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Join,
    Kill,
    Vanish,
    Stop,
    Cut,
    Reset,
    ServiceDies,
    ServiceVanishes,
    ServiceStops,
    Drain,
    DrainRank,
    DeviceFails,
    DiskStalls,
    FalseAlarm,
    /// The thread that trains, while that of the session goes on.
    Hang,
    /// Of one of several addresses.
    ServiceLost,
    ServiceRestarts,
    ServiceCut,
    ServicesSplit,
    MemberSplit,
}

const KINDS: [Fault; 14] = [
    Fault::Join,
    Fault::Kill,
    Fault::Vanish,
    Fault::Stop,
    Fault::Cut,
    Fault::Reset,
    Fault::ServiceDies,
    Fault::ServiceVanishes,
    Fault::ServiceStops,
    Fault::Drain,
    Fault::DrainRank,
    Fault::DeviceFails,
    Fault::DiskStalls,
    Fault::FalseAlarm,
];

const OF_SEVERAL: [Fault; 5] =
    [Fault::ServiceLost, Fault::ServiceRestarts, Fault::ServiceCut, Fault::ServicesSplit, Fault::MemberSplit];

/// The run, and what happens to it.
#[derive(Debug, Clone)]
pub struct Plan {
    pub world: usize,
    pub min: usize,
    pub max: usize,
    /// The most devices of a member.
    devices: u64,
    /// How many members are there at the beginning.
    pub members: usize,
    pub epochs: usize,
    /// Of an epoch.
    pub steps: usize,
    /// Steps from one checkpoint to the next.
    pub every: usize,
    /// The longest usual step and message, in milliseconds.
    pub step: u64,
    pub latency: u64,
    /// One message in so many is late; 0 for none.
    pub loss: u64,
    kinds: Vec<Fault>,
    /// The time between two faults, and when they end.
    gap: RangeInclusive<u64>,
    calm: u64,
    /// How many addresses the rendezvous has, and the rates of their clocks, in thousandths.
    pub addresses: usize,
    pub rates: Vec<u64>,
    /// Whether an operator starts members once the faults have ended.
    is_attended: bool,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(crate::random::mix(seed));
        let world = random.within(3..=8) as usize;
        let min = random.within(1..=2) as usize;
        let mut kinds: Vec<Fault> = KINDS.into_iter().filter(|_| random.once_in(2)).collect();
        kinds.extend([Fault::Join, Fault::Join]);
        let gap = random.within(300..=8_000);
        // Of its own, so that histories with one address stay what they were.
        let mut chance = Random::new(crate::random::mix(seed ^ 0x5ea7));
        let addresses = if chance.once_in(2) { 3 } else { 1 };
        if addresses > 1 {
            kinds.extend(OF_SEVERAL.into_iter().filter(|_| chance.once_in(2)));
        }
        let hangs = chance.once_in(3);
        kinds.extend(hangs.then_some(Fault::Hang));
        let rates = (0..addresses).map(|_| if addresses > 1 { chance.within(950..=1_050) } else { 1_000 }).collect();
        Self {
            world,
            min,
            max: random.within(min as u64..=6) as usize,
            devices: 2,
            members: random.within(min as u64..=4) as usize,
            epochs: random.within(2..=5) as usize,
            steps: random.within(5..=30) as usize,
            every: random.within(2..=20) as usize,
            step: random.within(40..=600),
            latency: random.within(2..=60),
            loss: random.within(0..=3) * 20,
            kinds,
            gap: 20..=gap,
            calm: random.within(5_000..=60_000),
            addresses,
            rates,
            is_attended: !random.once_in(8),
        }
    }

    pub fn calm_at(&self) -> u64 {
        self.calm
    }

    pub fn is_attended(&self) -> bool {
        self.is_attended
    }

    /// A calm run of `members`, each with one device.
    pub fn calm(members: usize) -> Self {
        Self {
            world: members + 1,
            min: 1,
            max: members + 1,
            devices: 1,
            members,
            epochs: 1_000_000,
            steps: 1_000,
            every: 1_000,
            step: 200,
            latency: 20,
            loss: 0,
            kinds: Vec::new(),
            gap: 1..=1,
            calm: u64::MAX,
            addresses: 1,
            rates: vec![1_000],
            is_attended: false,
        }
    }
}

impl World {
    pub fn open(&mut self) {
        self.say(|| format!("{:?}", self.plan));
        (0..self.plan.addresses).for_each(|at| self.start_service(at, 1));
        for _ in 0..self.plan.members {
            self.join();
        }
        if self.plan.calm < u64::MAX {
            self.next_fault();
            self.at(self.plan.calm, Event::Calm);
        }
    }

    /// Ends the process `who`, as a signal does.
    pub fn kill(&mut self, who: usize) {
        self.end(who, Outcome::Killed);
    }

    /// How many members compute in the generation that the service knows.
    pub fn computing(&self) -> usize {
        let generation = self.generation();
        let computes = |process: &&super::member::Process| !process.is_over() && process.is_training(generation);
        self.processes.iter().filter(computes).count()
    }

    pub fn generation(&self) -> u64 {
        let roster = self.leader().and_then(|at| self.services[at].roster.as_ref());
        roster.map_or(0, |roster| roster.placement.generation)
    }

    fn join(&mut self) {
        let devices = self.random.within(1..=self.plan.devices) as usize;
        self.start(devices);
    }

    fn next_fault(&mut self) {
        let gap = self.random.within(self.plan.gap.clone());
        if let Some(fault) = self.random.pick(&self.plan.kinds)
            && self.now + gap < self.plan.calm
        {
            self.after(gap, Event::Fault(fault));
        }
    }

    fn living(&self) -> Vec<usize> {
        (0..self.processes.len()).filter(|who| !self.processes[*who].is_over()).collect()
    }

    pub(super) fn suffer(&mut self, fault: Fault) {
        self.next_fault();
        let living = self.living();
        let at = if self.plan.addresses > 1 { self.random.within(0..=2) as usize } else { 0 };
        match fault {
            Fault::Join if living.len() < 8 => self.join(),
            Fault::ServiceDies | Fault::ServiceVanishes if self.services[at].is_up => {
                self.stop_service(at, fault == Fault::ServiceVanishes);
                let (number, away) = (self.services[at].number + 1, self.random.within(1..=15_000));
                self.after(away, Event::ServiceStarts { at, service: number });
            }
            Fault::ServiceRestarts if self.services[at].is_up => {
                self.stop_service(at, false);
                let (number, away) = (self.services[at].number + 1, self.random.within(1..=500));
                self.after(away, Event::ServiceStarts { at, service: number });
            }
            // One of three may be lost: most often the one that leads.
            Fault::ServiceLost if self.services.iter().all(|service| !service.is_lost) => {
                let at = self.leader().filter(|_| !self.random.once_in(4)).unwrap_or(at);
                self.stop_service(at, true);
                self.services[at].is_lost = true;
            }
            Fault::ServiceCut => {
                let until = self.now + self.random.within(100..=20_000);
                self.services[at].cut = until.max(self.services[at].cut);
                self.judge.excuse(until);
                self.say(|| format!("the service at address {at} is cut off until {until}"));
            }
            Fault::ServicesSplit => {
                let other = (at + 1) % 3;
                let until = self.now + self.random.within(100..=20_000);
                self.splits.insert((at.min(other), at.max(other)), until);
                self.say(|| format!("addresses {at} and {other} are split until {until}"));
            }
            Fault::ServiceStops => {
                let longest = if self.random.once_in(4) { 3 * LIMIT / 2 } else { 20_000 };
                let until = self.now + self.random.within(100..=longest);
                let wakes = until.max(self.services[at].wakes);
                self.services[at].wakes = wakes;
                self.judge.pause(wakes);
                self.say(|| format!("the service at address {at} is stopped until {wakes}"));
            }
            Fault::DiskStalls => self.disk.stalled = self.now + self.random.within(1_000..=20_000),
            Fault::DrainRank => {
                let rank = self.random.within(0..=7) as usize;
                if let Some(at) = self.leader() {
                    self.tell(at, Told::DrainRank(rank)).ok();
                }
            }
            _ => {
                if let Some(who) = self.random.pick(&living) {
                    self.say(|| format!("{fault:?}: process {}", self.processes[who].id));
                    self.strike(fault, who);
                }
            }
        }
    }

    fn strike(&mut self, fault: Fault, who: usize) {
        let until = self.now + self.random.within(50..=25_000);
        match fault {
            Fault::Kill => self.end(who, Outcome::Killed),
            Fault::Vanish => self.vanish_member(who),
            Fault::Stop => {
                let wakes = &mut self.processes[who].wakes;
                *wakes = until.max(*wakes);
                self.judge.ail(self.processes[who].id, until);
            }
            Fault::Cut => self.cut_off(who, until),
            // Of a process that runs: a stopped one that wakes may take one more step before it notices.
            Fault::Reset if self.processes[who].wakes <= self.now => {
                if let Link::Up { link, .. } = self.processes[who].link {
                    // A network that is away for a while may take it with it, and the service learn it late.
                    let longest = if self.random.once_in(2) { 20 } else { LOST / 2 };
                    for (longest, up) in [(longest, true), (20, false)] {
                        let delay = self.random.within(0..=longest);
                        self.after(delay, Event::Closing { link, up });
                    }
                    if longest > 20 {
                        let until = self.now + self.random.within(0..=longest);
                        self.cut_off(who, until);
                    }
                }
            }
            Fault::MemberSplit => {
                self.processes[who].split = (self.random.within(0..=2) as usize, until);
                self.judge.ail(self.processes[who].id, until);
            }
            Fault::Hang => {
                let until = self.now + self.random.within(1_000..=2 * LIMIT);
                let hangs = &mut self.processes[who].hangs;
                *hangs = Some(until).max(*hangs);
            }
            Fault::Drain => self.drain(who),
            Fault::DeviceFails => self.processes[who].failing_devices = 1,
            Fault::FalseAlarm => {
                if let Some(placement) = self.processes[who].placement() {
                    let symptom = "reset by nobody".into();
                    self.command(who, FromMember::Trouble(Progress::default(), placement.generation, symptom));
                }
            }
            _ => {}
        }
    }

    fn cut_off(&mut self, who: usize, until: u64) {
        let Process { id, cut, .. } = &mut self.processes[who];
        *cut = until.max(*cut);
        self.judge.ail(*id, until);
    }

    pub(super) fn drain(&mut self, who: usize) {
        self.processes[who].shared.change(MemberState::request_leave);
        self.command(who, FromMember::Drain);
        self.look(who);
    }

    /// Its machine is gone: no connection is closed.
    fn vanish_member(&mut self, who: usize) {
        let process = &mut self.processes[who];
        process.outcome = Some(Outcome::Killed);
        if let Link::Up { link, .. } | Link::Dialing { link, .. } = process.link {
            self.vanish(link, false);
        }
    }

    /// The faults end: whoever is there stays, and there are enough.
    pub(super) fn calm_down(&mut self) {
        self.is_calm = true;
        self.say(|| "calm".into());
        for process in &mut self.processes {
            process.failing_devices = 0;
        }
        for at in 0..self.services.len() {
            self.start_service(at, self.services[at].number + 1);
        }
        self.operate();
    }

    /// The operator starts members until the run is complete.
    pub(super) fn operate(&mut self) {
        if self.plan.is_attended && !self.is_complete() {
            let staying = |who: &usize| !self.processes[*who].shared.state.lock().own.draining;
            let missing = self.plan.min.saturating_sub(self.living().iter().filter(|who| staying(who)).count());
            (0..missing).for_each(|_| self.join());
            self.after(5_000, Event::Operator);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.processes.iter().any(|process| matches!(process.outcome, Some(Outcome::Complete(_))))
    }
}
