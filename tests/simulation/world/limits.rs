//! Time and its limits: no wait is without one, and nobody who is well is lost to one.

use std::time::Duration;

use super::member::{Link, Stage};
use super::{LIMIT, LOST, World};
use crate::rendezvous::membership::{MembershipView, Phase};
use crate::rendezvous::placement::Block;
use crate::rendezvous::roster::Roster;
use crate::rendezvous::wire::FromService;

/// Within this time after the last fault every process has ended: some limits one after the other, and the steps.
const BOUND: u64 = 900_000;
/// A history has fewer events.
const MOST: u64 = 1_000_000;

/// How many members the others could not connect with, so far.
pub fn reserves(roster: &Roster) -> usize {
    roster.members.iter().filter(|member| member.reserved_until.is_some()).count()
}

impl World {
    /// Nobody is lost for silence, or for being late, who was well.
    pub(super) fn judge_causes(&mut self, view: &MembershipView) {
        if !self.judge.whys.insert(view.why.clone()) {
            return;
        }
        let is_slow = |cause: &str| cause.contains("did not get ready");
        let is_judged = |cause: &&str| cause.contains("no sign of life") || is_slow(cause);
        for cause in view.why.split("; ").filter(is_judged) {
            if !self.judge.whys.insert(cause.into()) {
                continue;
            }
            let id: u64 = cause.trim_start_matches("host h").split(',').next().and_then(|id| id.parse().ok()).unwrap();
            let process = &self.processes[id as usize - 1];
            let (hangs, limit) = if is_slow(cause) { (process.hangs, LIMIT) } else { (None, 0) };
            // What a service counts when it wakes is its own pause.
            let wakes = self.services.iter().any(|service| service.wakes == self.now);
            let is_paused = (is_slow(cause) || !wakes) && self.is_paused(limit);
            let is_excused =
                is_paused || self.is_excused(id, limit) || hangs.is_some_and(|until| until + LOST + limit > self.now);
            assert!(
                is_excused || process.is_over() || process.shared.state.lock().session == 0,
                "{id} was well: {cause}"
            );
        }
    }

    /// Whether a member, or a service, was away less than this time ago, or a little longer.
    fn is_excused(&self, id: u64, time: u64) -> bool {
        let ails = self.judge.ailing.get(&id).is_some_and(|until| until + 2 * LOST + time > self.now);
        ails || self.judge.excused.is_some_and(|until| until + LOST + time > self.now)
    }

    fn is_paused(&self, time: u64) -> bool {
        self.judge.paused.is_some_and(|until| until + LOST + time > self.now)
    }

    /// What changes is announced at once, no generation goes on without one of its members, and a member of the last
    /// one that does not get ready does not keep the others for long.
    pub(super) fn judge_waiting(&self, at: usize) {
        let Some(roster) = self.services[at].roster.as_ref().filter(|it| it.ended.is_none()) else { return };
        let announced = match &self.services[at].latest {
            Some(FromService::View(latest)) => (latest.generation, latest.phase),
            _ => (0, Phase::Waiting),
        };
        assert_eq!(announced, (roster.placement.generation, roster.phase), "every change is announced");
        // Those from before a restart may be on their way.
        let is_here = |block: &Block| roster.members.iter().any(|it| it.info.id == block.id);
        let is_whole = roster.returning_since.is_some() || roster.placement.blocks.iter().all(is_here);
        assert!(roster.phase != Phase::Running || is_whole, "a generation runs on without one of its members");
        if roster.phase != Phase::Over {
            return;
        }
        // A restarted service waits for those who come back first.
        let limit = Duration::from_millis(LIMIT + LOST);
        for member in roster.members.iter().filter(|it| it.rank.is_some() && it.computing.is_some()) {
            let since = member.joined_at.max(roster.since);
            assert!(self.instant(at) - since < limit, "the others wait for {}", member.info.id);
        }
    }

    /// Whoever wants to leave waits for no service that is away, but for its own disk.
    pub(super) fn judge_leaver(&self, who: usize) {
        let state = self.processes[who].shared.state.lock();
        let Some((asked, away)) = state.leave_requested.zip(state.disconnected_since) else { return };
        let waits = asked.max(away).elapsed() > Duration::from_millis(LIMIT);
        // Before it has joined, a signal just ends it.
        let has_joined = self.processes[who].stage != Stage::Joining && !self.processes[who].is_over();
        let is_held_up = self.idle(who) + LIMIT > self.now;
        assert!(
            !waits || is_held_up || !has_joined,
            "{} wants to leave, and waits for the service",
            self.processes[who].id
        );
    }

    /// A removed member that is well joins again before the service gives up its connection.
    pub(super) fn judge_dismissal(&self, link: usize) {
        let process = &self.processes[self.connections[link].who];
        let is_there = matches!(process.link, Link::Up { link: current, .. } if current == link);
        let state = process.shared.state.lock();
        let must_return = state.is_known && !state.own.draining && is_there && !process.is_over();
        let is_excused = self.is_paused(0) || self.is_excused(process.id, 0);
        assert!(!must_return || is_excused, "{} does not join again", process.id);
    }

    /// No wait is without limit.
    pub(super) fn judge_time(&self) {
        assert!(self.count < MOST, "events without end at {} ms", self.now);
        if self.is_calm && self.now > self.plan_end() {
            let stuck: Vec<_> = self.processes.iter().filter(|it| !it.is_over()).map(|it| (it.id, it.stage)).collect();
            panic!("nothing ends {} s after the last fault: {stuck:?}", BOUND / 1000);
        }
    }

    fn plan_end(&self) -> u64 {
        self.plan.calm_at() + BOUND
    }
}
