//! Whom the service turned away, in few lines of the log: the first time of an address at once, all others counted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An address gets a line at most so often.
pub const INTERVAL: Duration = Duration::from_secs(60);
/// So many addresses are told from each other; all others share a line.
pub const MOST_ADDRESSES: usize = 64;

/// What was turned away since the last line about it.
#[derive(Debug)]
struct Tally {
    since: Instant,
    count: u64,
    /// Why the last one was.
    why: String,
}

/// The tallies of all addresses; the address is absent for those beyond [`MOST_ADDRESSES`].
#[derive(Debug, Default)]
pub struct Tallies(BTreeMap<Option<IpAddr>, Tally>);

impl Tallies {
    /// One more from `address`; answers with the line to log, if it is the first one.
    pub fn note(&mut self, address: IpAddr, why: &str, now: Instant) -> Option<String> {
        let is_known = self.0.contains_key(&Some(address));
        let key = (is_known || self.0.len() < MOST_ADDRESSES).then_some(address);
        if let Some(tally) = self.0.get_mut(&key) {
            tally.count += 1;
            tally.why = why.into();
            return None;
        }
        self.0.insert(key, Tally { since: now, count: 0, why: why.into() });
        Some(format!("turned {} away from the rendezvous: {why}", name(key)))
    }

    /// The lines that are due; all of them if nothing comes after `now`.
    pub fn settle(&mut self, now: Instant, is_last: bool) -> Vec<String> {
        let due = |tally: &Tally| is_last || now.saturating_duration_since(tally.since) >= INTERVAL;
        let line = |(key, tally): (&Option<IpAddr>, &Tally)| {
            let (who, Tally { count, why, .. }) = (name(*key), tally);
            format!("turned {who} away from the rendezvous {count} more times, the last time because: {why}")
        };
        let told = |tally: &Tally| due(tally) && tally.count > 0;
        let lines = self.0.iter().filter(|(_, tally)| told(tally)).map(line).collect();
        self.0.retain(|_, tally| !due(tally) || tally.count > 0);
        self.0.values_mut().filter(|tally| due(tally)).for_each(|tally| (tally.since, tally.count) = (now, 0));
        lines
    }
}

fn name(address: Option<IpAddr>) -> String {
    address.map_or("other addresses".into(), |address| address.to_string())
}

/// The tallies of a service.
#[derive(Debug, Default)]
pub(super) struct Knocks(Mutex<Tallies>);

impl Knocks {
    pub fn note(&self, address: IpAddr, why: &str) {
        let line = self.tallies().note(address, why, Instant::now());
        line.into_iter().for_each(|line| tracing::warn!("{line}"));
    }

    pub fn settle(&self, is_last: bool) {
        let lines = self.tallies().settle(Instant::now(), is_last);
        lines.into_iter().for_each(|line| tracing::warn!("{line}"));
    }

    /// Every change is whole before anything could panic.
    fn tallies(&self) -> MutexGuard<'_, Tallies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
