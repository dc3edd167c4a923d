//! Collectives between the replicas of a process, which are threads: parts are handed over under one lock.
//!
//! They are combined in the order of ranks, whatever the order of arrival. The last replica to arrive computes the
//! result; the others sleep, after a moment in which they only look: a step of
//! ResNet-18 has forty exchanges of statistics, most of which take less time than to fall asleep and wake up.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kiln_ops::statistics::Payload;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Broken, Key, Operation};

/// How much longer than a collective the first step, a validation and the start of processes may take, because of
/// kernels to compile, uneven shares and data to read.
pub const PATIENCE: u32 = 10;

/// How long replicas wait for each other at most when nothing depends on it any more.
const LEAVING: Duration = Duration::from_secs(2);

/// How long a replica looks before it sleeps.
const MOMENT: Duration = Duration::from_micros(100);

/// The remedy if a limit was too short.
const ONLY_SLOW: &str = "if nothing hangs and the step is only slow, raise --timeout";

/// The replicas that a process has.
pub(super) struct Threads {
    pub(super) ranks: Range<usize>,
    timeout: Duration,
    first_step: OnceLock<usize>,
    table: Mutex<Table>,
    arrived: Condvar,
    /// How often somebody was woken.
    news: AtomicUsize,
    /// Whether every replica may have a processor, so that one that looks is in nobody's way.
    has_processors: bool,
}

#[derive(Default)]
struct Table {
    /// With the first of the ranks that take part.
    pending: HashMap<(Key, usize), PendingCollective>,
    mail: HashMap<Key, Payload>,
    verdict: Option<Broken>,
}

struct PendingCollective {
    contributions: Vec<Option<Payload>>,
    /// All replicas have arrived; the rest of the work has its own limits.
    complete: bool,
    result: Option<Payload>,
    left: usize,
}

impl Threads {
    pub(super) fn new(ranks: Range<usize>, timeout: Duration) -> Self {
        let has_processors = std::thread::available_parallelism().is_ok_and(|count| ranks.len() <= count.get());
        let (first_step, table, arrived) = (OnceLock::new(), Mutex::default(), Condvar::new());
        Self { ranks, timeout, first_step, table, arrived, news: AtomicUsize::new(0), has_processors }
    }

    fn wake(&self) {
        self.news.fetch_add(1, Ordering::Release);
        self.arrived.notify_all();
    }

    /// Looks for news for a moment without holding the lock.
    fn look<'a>(&'a self, table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        if !self.has_processors {
            return table;
        }
        let (seen, start) = (self.news.load(Ordering::Acquire), Instant::now());
        drop(table);
        while self.news.load(Ordering::Acquire) == seen && start.elapsed() < MOMENT {
            std::hint::spin_loop();
        }
        self.table.lock()
    }

    /// How long a replica may wait for the others.
    pub(super) fn limit(&self, key: Key) -> Duration {
        if key.operation == Operation::Leaving {
            return self.timeout.min(LEAVING);
        }
        let first = *self.first_step.get_or_init(|| key.step);
        let unhurried = key.step == first || key.operation == Operation::Validation;
        self.timeout * if unhurried { PATIENCE } else { 1 }
    }

    fn fail(&self, table: &mut Table, reason: Broken) -> Broken {
        let verdict = table.verdict.get_or_insert(reason).clone();
        self.wake();
        verdict
    }

    /// Breaks the group; the first reason is kept.
    pub(super) fn abort(&self, reason: Broken) {
        self.fail(&mut self.table.lock(), reason);
    }

    /// Contributes `part` to the collective `key` of the replicas `members`; the last one to arrive combines the parts,
    /// in the order of ranks, into the result of all.
    pub(super) fn meet(
        &self,
        members: Range<usize>,
        rank: usize,
        key: Key,
        part: Payload,
        combine: impl FnOnce(Vec<Payload>) -> Result<Payload, Broken>,
    ) -> Result<Payload, Broken> {
        let mut table = self.table.lock();
        if let Some(verdict) = &table.verdict {
            return Err(verdict.clone());
        }
        let (size, id) = (members.len(), (key, members.start));
        let new = || PendingCollective { contributions: vec![None; size], complete: false, result: None, left: size };
        let collective = table.pending.entry(id).or_insert_with(new);
        // A complete collective stays until all replicas have left, so a replica that arrives now has been there
        // before.
        if collective.complete || collective.contributions[rank - members.start].replace(part).is_some() {
            let twice = Broken::Replica(format!("replica {rank} came twice to the {key}"));
            return Err(self.fail(&mut table, twice));
        }
        if collective.contributions.iter().all(Option::is_some) {
            collective.complete = true;
            let parts = collective.contributions.iter_mut().filter_map(Option::take).collect();
            drop(table);
            let result = combine(parts);
            table = self.table.lock();
            match result {
                Ok(result) => drop(table.pending.get_mut(&id).map(|collective| collective.result = Some(result))),
                Err(reason) => drop(self.fail(&mut table, reason)),
            }
            self.wake();
        } else {
            table = self.look(table);
        }
        self.take(table, id)
    }

    /// Waits for the result; the last replica removes the collective.
    fn take(&self, mut table: MutexGuard<'_, Table>, id: (Key, usize)) -> Result<Payload, Broken> {
        let (key, first) = id;
        let limit = self.limit(key);
        let start = Instant::now();
        loop {
            // A result is returned even if the group broke later, so that all replicas end after the same step.
            let collective = table.pending.get_mut(&id).expect("a meeting stays until all replicas have left");
            if let Some(result) = collective.result.clone() {
                collective.left -= 1;
                if collective.left == 0 {
                    table.pending.remove(&id);
                }
                return Ok(result);
            }
            if let Some(verdict) = &table.verdict {
                return Err(verdict.clone());
            }
            let collective = &table.pending[&id];
            if collective.complete {
                self.arrived.wait(&mut table);
                continue;
            }
            let Some(rest) = limit.checked_sub(start.elapsed()) else {
                let missing = collective.contributions.iter().zip(first..).filter(|(part, _)| part.is_none());
                let missing: Vec<String> = missing.map(|(_, rank)| rank.to_string()).collect();
                let who = if missing.len() == 1 { "replica" } else { "replicas" };
                let (names, seconds) = (missing.join(", "), limit.as_secs_f64());
                let late = format!("{who} {names} did not come to the {key} within {seconds} s; {ONLY_SLOW}");
                return Err(self.fail(&mut table, Broken::Replica(late)));
            };
            self.arrived.wait_for(&mut table, rest);
        }
    }
}

/// Messages from one replica of this process to another; the key names the receiver.
impl Threads {
    pub(super) fn post(&self, key: Key, part: Payload) -> Result<(), Broken> {
        let mut table = self.table.lock();
        if let Some(verdict) = &table.verdict {
            return Err(verdict.clone());
        }
        table.mail.insert(key, part);
        self.wake();
        Ok(())
    }

    pub(super) fn fetch(&self, key: Key) -> Result<Payload, Broken> {
        let limit = self.limit(key);
        let start = Instant::now();
        let mut table = self.table.lock();
        loop {
            if let Some(part) = table.mail.remove(&key) {
                return Ok(part);
            }
            if let Some(verdict) = &table.verdict {
                return Err(verdict.clone());
            }
            let Some(rest) = limit.checked_sub(start.elapsed()) else {
                let seconds = limit.as_secs_f64();
                let reason = format!("the {key} did not come within {seconds} s; {ONLY_SLOW}");
                return Err(self.fail(&mut table, Broken::Replica(reason)));
            };
            self.arrived.wait_for(&mut table, rest);
        }
    }
}
