//! Logs rejected connections in few lines: the first one of an address at once, the later ones as a count.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The shortest time between two lines about an address.
pub const INTERVAL: Duration = Duration::from_secs(60);
/// How many addresses are counted separately; all others share a line.
pub const MOST_ADDRESSES: usize = 64;

/// The rejections of one address since its last line.
#[derive(Debug)]
struct Rejection {
    since: Instant,
    count: u64,
    why: String,
}

/// The rejections by address; the key is `None` for addresses beyond [`MOST_ADDRESSES`].
#[derive(Debug, Default)]
pub struct Rejections(BTreeMap<Option<IpAddr>, Rejection>);

impl Rejections {
    /// Counts a rejection; returns the line to log if it is the first of `address`.
    pub fn note(&mut self, address: IpAddr, why: &str, now: Instant) -> Option<String> {
        let is_known = self.0.contains_key(&Some(address));
        let key = (is_known || self.0.len() < MOST_ADDRESSES).then_some(address);
        if let Some(rejection) = self.0.get_mut(&key) {
            rejection.count += 1;
            rejection.why = why.into();
            return None;
        }
        self.0.insert(key, Rejection { since: now, count: 0, why: why.into() });
        Some(format!("rejected a connection from {}: {why}", name(key)))
    }

    /// The lines that are due, or all lines if `is_last`.
    pub fn due_lines(&mut self, now: Instant, is_last: bool) -> Vec<String> {
        let due = |rejection: &Rejection| is_last || now.saturating_duration_since(rejection.since) >= INTERVAL;
        let line = |(key, rejection): (&Option<IpAddr>, &Rejection)| {
            let (who, Rejection { count, why, .. }) = (name(*key), rejection);
            format!("rejected {count} more connections from {who}, the last because: {why}")
        };
        let told = |rejection: &Rejection| due(rejection) && rejection.count > 0;
        let lines = self.0.iter().filter(|(_, rejection)| told(rejection)).map(line).collect();
        self.0.retain(|_, rejection| !due(rejection) || rejection.count > 0);
        self.0
            .values_mut()
            .filter(|rejection| due(rejection))
            .for_each(|rejection| (rejection.since, rejection.count) = (now, 0));
        lines
    }
}

fn name(address: Option<IpAddr>) -> String {
    address.map_or("other addresses".into(), |address| address.to_string())
}

#[derive(Debug, Default)]
pub(super) struct RejectionLog(Mutex<Rejections>);

impl RejectionLog {
    pub(crate) fn note(&self, address: IpAddr, why: &str) {
        let line = self.0.lock().note(address, why, Instant::now());
        line.into_iter().for_each(|line| tracing::warn!("{line}"));
    }

    /// Logs the lines that are due, or all lines if `is_last`.
    pub(crate) fn log_due(&self, is_last: bool) {
        let lines = self.0.lock().due_lines(Instant::now(), is_last);
        lines.into_iter().for_each(|line| tracing::warn!("{line}"));
    }
}
