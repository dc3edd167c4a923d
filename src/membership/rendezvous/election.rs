//! Which address of an elastic run with several holds its rendezvous: an election by leases.
//!
//! At each address one process is a **voter** and a candidate. A candidate claims the votes; the one to which a
//! majority has granted them **leads** for as long as these grants last, and renews them. Time and answers go in,
//! claims go out: no network, no clock, nothing on a disk.
//!
//! Why there is never a second leader, and never a member that computes for an earlier one:
//!
//! - A voter grants its vote to one candidate at a time, for a lease from when it got the claim. A voter that has just
//!   been started may have forgotten a grant, so it grants nothing for one lease.
//! - A candidate counts four fifths of a lease from when it *sent* the claim, so for it a grant is over before it is
//!   for the voter, although messages are late and clocks run at rates that differ by up to a fifth.
//! - Two majorities share a voter. So the grants of the next leader begin after the grants of the previous one have
//!   ended.
//! - The answer to a heartbeat says how long the leader's grants last, and no member updates its state for longer (see
//!   [`client`](super::Client)). So the leases of all members are over as well: members of a leader that was stopped or
//!   cut off cannot commit a step while the next leader's members do.
//!
//! A new leader learns the state of the run from the members, as a restarted service does. Claims of a leader carry the
//! number of its generation, so that members that were away for long are not mistaken for its own.
//!
//! Candidates claim the votes in the order of the addresses and stop at one that another candidate has, so that they
//! contend at the first voter that answers. One that got too few lets its grants run out, each for another time.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The answer of a voter to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Vote {
    Granted,
    Taken,
    /// It was started less than a lease ago.
    Young,
}

/// How long a leader must be silent before another one may be elected, if a member is lost after `lost_after`.
pub fn lease(lost_after: Duration) -> Duration {
    lost_after / 3
}

/// A process at one of the addresses, which is a candidate, too.
#[derive(Debug)]
pub struct Voter {
    pub candidate: u64,
    /// How long a grant lasts.
    pub lease: Duration,
    started: Instant,
    /// Who has the vote of this process, and until when.
    granted: Option<(u64, Instant)>,
    /// For each address: when the last claim was sent, and the last one that was granted.
    sent: Vec<Option<Instant>>,
    won: Vec<Option<Instant>>,
    leads_since: Option<Instant>,
    /// While it does not lead: the address to answer next, whether a voter was young, and when it continues.
    next: usize,
    met_young: bool,
    rests_until: Instant,
}

impl Voter {
    /// A voter that was started now, one of `count`.
    pub fn new(candidate: u64, count: usize, lease: Duration, now: Instant) -> Self {
        let (sent, won) = (vec![None; count], vec![None; count]);
        let (granted, leads_since, next, met_young) = (None, None, 0, false);
        Self { candidate, lease, started: now, granted, sent, won, leads_since, next, met_young, rests_until: now }
    }

    pub fn vote(&mut self, candidate: u64, now: Instant) -> Vote {
        if self.is_young(now) {
            return Vote::Young;
        }
        if self.is_taken(candidate, now) {
            return Vote::Taken;
        }
        self.granted = Some((candidate, now + self.lease));
        Vote::Granted
    }

    fn is_young(&self, now: Instant) -> bool {
        now < self.started + self.lease
    }

    /// Whether another candidate than `candidate` has the vote of this process.
    fn is_taken(&self, candidate: u64, now: Instant) -> bool {
        self.granted.is_some_and(|(other, until)| other != candidate && now < until)
    }

    /// Since when this process leads, and until when; `None` if it does not.
    pub fn leads(&self, now: Instant) -> Option<(Instant, Instant)> {
        let (since, until) = (self.leads_since?, self.until()?);
        (now < until).then_some((since, until))
    }

    /// When the grants of a majority end, as this candidate counts.
    fn until(&self) -> Option<Instant> {
        let mut won: Vec<Instant> = self.won.iter().flatten().copied().collect();
        won.sort_unstable_by(|a, b| b.cmp(a));
        won.get(self.won.len() / 2).map(|sent| *sent + self.lease * 4 / 5)
    }

    pub fn due(&mut self, now: Instant) -> Vec<usize> {
        if self.leads(now).is_none() && self.leads_since.take().is_some() {
            self.begin_again();
        }
        let pause = self.pause();
        let is_due = |sent: &Option<Instant>| sent.is_none_or(|sent| now >= sent + pause);
        let claimed: Vec<usize> = if self.leads(now).is_some() {
            (0..self.sent.len()).filter(|voter| is_due(&self.sent[*voter])).collect()
        } else if now < self.rests_until || self.is_young(now) {
            Vec::new()
        } else if self.is_taken(self.candidate, now) {
            self.begin_again();
            Vec::new()
        } else {
            // No answer within a pause is none.
            while self.sent.get(self.next).is_some_and(|sent| sent.is_some_and(|sent| now >= sent + pause)) {
                self.next += 1;
            }
            if self.next == self.sent.len() {
                self.rest(now);
            }
            self.sent.get(self.next).filter(|sent| sent.is_none()).map(|_| self.next).into_iter().collect()
        };
        claimed.iter().for_each(|voter| self.sent[*voter] = Some(now));
        claimed
    }

    /// Takes the answer to the claim to `voter` that was sent at `sent`; `None` if it cannot be reached.
    pub fn answered(&mut self, voter: usize, sent: Instant, vote: Option<Vote>, now: Instant) {
        let led = self.leads(now).is_some();
        if vote == Some(Vote::Granted) {
            self.won[voter] = self.won[voter].max(Some(sent));
        }
        if led {
            return;
        }
        // Members find a leader only where it holds an address itself.
        let is_own = self.granted.is_some_and(|(candidate, until)| candidate == self.candidate && now < until);
        self.leads_since = self.until().filter(|until| is_own && now < *until).map(|_| now);
        if self.leads_since.is_some() {
            self.begin_again();
        } else if voter == self.next && self.sent[voter] == Some(sent) {
            self.met_young |= vote == Some(Vote::Young);
            match vote {
                Some(Vote::Taken) => self.rest(now),
                _ => self.next += 1,
            }
        }
    }

    /// Between two claims to one voter.
    fn pause(&self) -> Duration {
        self.lease / 4
    }

    /// Gives up for now. Grants of other voters run out meanwhile, unless only young ones are missing.
    fn rest(&mut self, now: Instant) {
        let holds = self.won.iter().flatten().any(|sent| now < *sent + self.lease);
        let time = if holds && !self.met_young { self.lease } else { self.pause() };
        self.rests_until = now + time + time * (self.candidate % 1024) as u32 / 1024;
        self.begin_again();
    }

    fn begin_again(&mut self) {
        (self.next, self.met_young) = (0, false);
        self.sent.fill(None);
    }
}
