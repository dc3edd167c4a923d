//! The election between the addresses of a rendezvous alone, with more faults than a whole run has.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::number;
use super::random::{Random, mix};
use crate::rendezvous::election::{Vote, Voter};

const LEASE: Duration = Duration::from_secs(3);
/// When faults end, when there must be a leader, and when a history ends, in milliseconds.
const CALM: u64 = 60_000;
const ELECTED: u64 = 90_000;
const END: u64 = 100_000;
const TICK: u64 = 50;

/// A claim of the holder `number` of the address `from`, and its answer, if it has one.
#[derive(Debug, Clone, Copy)]
struct Claim {
    from: usize,
    number: u64,
    to: usize,
    candidate: u64,
    sent: Instant,
    answer: Option<Vote>,
}

#[derive(Debug)]
struct Holder {
    /// `None` while nobody holds the address.
    voter: Option<Voter>,
    /// Counts the processes that held it.
    number: u64,
    /// When it wakes, and when the next process comes.
    wakes: u64,
    returns: u64,
    /// Of its clock, in thousandths.
    rate: u64,
}

struct Election {
    now: u64,
    start: Instant,
    random: Random,
    holders: Vec<Holder>,
    /// Until when two cannot reach each other.
    splits: BTreeMap<(usize, usize), u64>,
    mail: BTreeMap<(u64, u64), Claim>,
    posted: u64,
}

impl Election {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(mix(seed));
        let count = if random.once_in(2) { 3 } else { 5 };
        let mut holder = |_| Holder { voter: None, number: 0, wakes: 0, returns: 0, rate: random.within(950..=1_050) };
        let holders = (0..count).map(&mut holder).collect();
        let (splits, mail) = Default::default();
        Self { now: 0, start: Instant::now(), random, holders, splits, mail, posted: 0 }
    }

    fn time(&self, at: usize) -> Instant {
        self.start + Duration::from_micros(self.now * self.holders[at].rate)
    }

    fn leaders(&self) -> Vec<usize> {
        let leads = |at: &usize| self.holders[*at].voter.as_ref().is_some_and(|it| it.leads(self.time(*at)).is_some());
        (0..self.holders.len()).filter(leads).collect()
    }

    fn post(&mut self, claim: Claim) {
        let pair = (claim.from.min(claim.to), claim.from.max(claim.to));
        let is_split = claim.from != claim.to && self.splits.get(&pair).is_some_and(|until| *until > self.now);
        let is_calm = self.now >= CALM;
        if !is_split && (is_calm || !self.random.once_in(50)) {
            let longest = if !is_calm && self.random.once_in(10) { 4_000 } else { 100 };
            self.posted += 1;
            self.mail.insert((self.now + self.random.within(1..=longest), self.posted), claim);
        }
    }

    fn suffer(&mut self) {
        let count = self.holders.len();
        let (at, other) = (self.random.next() as usize % count, self.random.next() as usize % count);
        match self.random.within(0..=3) {
            // Often just before it would be claimed again.
            0 => {
                self.holders[at].voter = None;
                self.holders[at].returns = self.now + self.random.within(1..=600);
            }
            1 => self.holders[at].wakes = self.now + self.random.within(50..=8_000),
            _ => drop(self.splits.insert((at.min(other), at.max(other)), self.now + self.random.within(500..=9_000))),
        }
    }

    fn step(&mut self) {
        let now = self.now;
        for at in 0..self.holders.len() {
            let (time, count) = (self.time(at), self.holders.len());
            let holder = &mut self.holders[at];
            if holder.voter.is_none() && holder.returns <= now {
                holder.number += 1;
                holder.voter = Some(Voter::new(self.random.next(), count, LEASE, time));
            }
            if holder.wakes > now {
                continue;
            }
            let number = holder.number;
            let Some(voter) = &mut holder.voter else { continue };
            let (due, candidate) = (voter.due(time), voter.candidate);
            let claim = |to| Claim { from: at, number, to, candidate, sent: time, answer: None };
            due.into_iter().for_each(|to| self.post(claim(to)));
        }
    }

    /// Delivers what has come; what comes to a stopped holder waits.
    fn deliver(&mut self) {
        while let Some(entry) = self.mail.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let claim = entry.remove();
            let at = if claim.answer.is_some() { claim.from } else { claim.to };
            let (time, wakes) = (self.time(at), self.holders[at].wakes);
            if wakes > self.now {
                self.posted += 1;
                self.mail.insert((wakes, self.posted), claim);
                continue;
            }
            let holder = &mut self.holders[at];
            let Some(voter) = &mut holder.voter else { continue };
            match claim.answer {
                None => {
                    let answer = Some(voter.vote(claim.candidate, time));
                    self.post(Claim { answer, ..claim });
                }
                answer if holder.number == claim.number => voter.answered(claim.to, claim.sent, answer, time),
                _ => {}
            }
        }
    }

    fn run(mut self, seed: u64) {
        let mut fault = 0;
        while self.now < END {
            if self.now >= fault && self.now < CALM {
                self.suffer();
                fault = self.now + self.random.within(100..=1_500);
            }
            if self.now == CALM {
                // Less than half are lost for good.
                for at in 0..self.holders.len() / 2 {
                    (self.holders[at].voter, self.holders[at].returns) = (None, END);
                }
            }
            self.step();
            self.deliver();
            let leaders = self.leaders();
            assert!(leaders.len() < 2, "seed {seed}: at {} ms {leaders:?} lead", self.now);
            assert!(self.now != ELECTED || leaders.len() == 1, "seed {seed}: nobody leads");
            self.now += TICK;
        }
    }
}

#[test]
fn there_are_never_two_leaders_and_a_majority_elects_one() {
    let all = 0..number("KILN_SEEDS").unwrap_or(300);
    let seeds = number("KILN_SEED").map_or(all, |seed| seed..seed + 1);
    seeds.for_each(|seed| Election::new(seed).run(seed));
}
