//! The election between services at several addresses: what `service.rs` does with the real election.

use super::{Event, LOST, World};
use crate::random::mix;
use crate::rendezvous::election::{Vote, Voter, lease};

/// The time limit of a claim.
const HANDSHAKE: u64 = 5_000;

/// A claim of the service `number` at the address `from`.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    pub from: usize,
    number: u64,
    candidate: u64,
    pub to: usize,
    sent: std::time::Instant,
    generation: u64,
    /// When the claimant stops to wait.
    limit: u64,
}

impl World {
    pub(super) fn new_voter(&self, at: usize) -> Voter {
        let candidate = mix(self.tenures);
        Voter::new(candidate, self.plan.addresses, lease(std::time::Duration::from_millis(LOST)), self.instant(at))
    }

    /// The address that leads.
    pub(super) fn leader(&self) -> Option<usize> {
        (0..self.services.len()).find(|at| {
            let service = &self.services[*at];
            let leads = |voter: &Voter| voter.leads(self.instant(*at)).is_some();
            service.is_up && service.voter.as_ref().is_none_or(leads)
        })
    }

    /// Which service a member has met, and in which time of its leading.
    pub(super) fn tenure(&self, who: usize) -> u64 {
        self.services[self.processes[who].address].tenure
    }

    pub(super) fn claim(&mut self, from: usize) {
        let now = self.instant(from);
        let Some(voter) = &mut self.services[from].voter else { return };
        let (candidate, due) = (voter.candidate, voter.due(now));
        let generation = self.services[from].roster.as_ref().map_or(0, |roster| roster.placement.generation);
        for to in due {
            let (number, limit) = (self.services[from].number, self.now + HANDSHAKE);
            let claim = Claim { from, number, candidate, to, sent: now, generation, limit };
            let arrival = self.passage(from, to);
            let there = &self.services[to];
            if !there.is_up && !there.has_vanished {
                self.at(arrival, Event::Vote(claim, None));
            } else if there.is_up && arrival < limit {
                self.at(arrival, Event::Claim(claim));
            } else {
                self.at(limit, Event::Vote(claim, None));
            }
        }
    }

    /// When a message from one address reaches another.
    fn passage(&mut self, from: usize, to: usize) -> u64 {
        let split = self.splits.get(&(from.min(to), from.max(to))).copied().unwrap_or_default();
        let cut = if from == to { 0 } else { self.services[from].cut.max(self.services[to].cut).max(split) };
        let late = if self.plan.loss > 0 && self.random.once_in(self.plan.loss) { 600 } else { 0 };
        cut.max(self.now) + late + self.random.within(1..=self.plan.latency)
    }

    pub(super) fn claimed(&mut self, claim: Claim) {
        let now = self.instant(claim.to);
        let there = &mut self.services[claim.to];
        there.known = there.known.max(claim.generation);
        let vote = there.voter.as_mut().filter(|_| there.is_up).map(|voter| voter.vote(claim.candidate, now));
        self.say(|| format!("address {} asks {}: {vote:?}", claim.from, claim.to));
        let back = self.passage(claim.to, claim.from);
        let is_heard = vote.is_some() && back < claim.limit;
        let (time, vote) = if is_heard { (back, vote) } else { (claim.limit, None) };
        self.at(time, Event::Vote(claim, vote));
    }

    pub(super) fn voted(&mut self, claim: Claim, vote: Option<Vote>) {
        let now = self.instant(claim.from);
        let claimant = &mut self.services[claim.from];
        if let Some(voter) = claimant.voter.as_mut().filter(|_| claimant.is_up && claimant.number == claim.number) {
            voter.answered(claim.to, claim.sent, vote, now);
            self.claim(claim.from);
        }
    }

    /// There is one leader at most, also if some are stopped.
    pub(super) fn judge_leaders(&self) {
        let leads = |at: &usize| {
            let service = &self.services[*at];
            service.is_up && service.voter.as_ref().is_some_and(|voter| voter.leads(self.instant(*at)).is_some())
        };
        let leaders: Vec<usize> = (0..self.services.len()).filter(leads).collect();
        assert!(leaders.len() < 2, "two addresses lead: {leaders:?}");
    }
}
