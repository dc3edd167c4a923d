//! The in-process engine: replicas are threads, messages are vectors that change hands under one lock.
//!
//! It is the reference for every other engine. Sums are taken in a fixed tree over ranks, so the result does not depend
//! on who came when. Whoever comes last does the work; the others sleep.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::bf16;
use rayon::prelude::*;

use super::collective::{Broken, Collective, Key, Operation};

/// How much longer the first step and a validation may take: kernels are compiled, shares are uneven.
const PATIENCE: u32 = 10;

/// One replica's handle on a group of threads.
#[derive(Debug)]
pub struct LocalReplica {
    rank: usize,
    group: Arc<Group>,
}

/// Makes the handles of a group of `size` replicas. `timeout` bounds the wait for the slowest of them.
pub fn local_group(size: usize, timeout: Duration) -> Vec<Arc<LocalReplica>> {
    let group = Arc::new(Group {
        size,
        timeout,
        first_step: OnceLock::new(),
        table: Mutex::default(),
        came: Condvar::new(),
        spare: Mutex::default(),
    });
    (0..size).map(|rank| Arc::new(LocalReplica { rank, group: group.clone() })).collect()
}

struct Group {
    size: usize,
    timeout: Duration,
    first_step: OnceLock<usize>,
    table: Mutex<Table>,
    came: Condvar,
    /// Memory of earlier all-reduces.
    spare: Mutex<Vec<Vec<f32>>>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({} replicas)", self.size)
    }
}

#[derive(Default)]
struct Table {
    meetings: HashMap<Key, Meeting>,
    verdict: Option<Broken>,
}

/// What replicas bring, and what they take away.
#[derive(Clone)]
enum Message {
    Nothing,
    Floats(Arc<Vec<f32>>),
    Halves(Vec<bf16>),
    Values(Vec<f64>),
    Gathered(Arc<Vec<Vec<f64>>>),
}

struct Meeting {
    brought: Vec<Option<Message>>,
    result: Option<Message>,
    left: usize,
}

impl Group {
    /// A replica that unwound while it held the lock left the table whole: every change is a single assignment.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit(&self, key: Key) -> Duration {
        let first = *self.first_step.get_or_init(|| key.step);
        let unhurried = key.step == first || key.operation == Operation::Validation;
        self.timeout * if unhurried { PATIENCE } else { 1 }
    }

    fn keep(&self, values: Vec<f32>) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(values);
    }

    fn fail(&self, table: &mut Table, reason: String) -> Broken {
        let verdict = table.verdict.get_or_insert(Broken(reason)).clone();
        self.came.notify_all();
        verdict
    }

    /// Brings `message` to the meeting named `key`; the last to come turns all messages into the result.
    fn meet(
        &self,
        rank: usize,
        key: Key,
        message: Message,
        combine: impl FnOnce(Vec<Message>) -> Message,
    ) -> Result<Message, Broken> {
        let mut table = self.lock();
        if let Some(verdict) = &table.verdict {
            return Err(verdict.clone());
        }
        let size = self.size;
        let fresh = || Meeting { brought: vec![None; size], result: None, left: size };
        let meeting = table.meetings.entry(key).or_insert_with(fresh);
        // A meeting that has its result lasts until all have left; who comes again has left it already.
        if meeting.result.is_some() || meeting.brought[rank].replace(message).is_some() {
            return Err(self.fail(&mut table, format!("replica {rank} came twice to the {key}")));
        }
        if meeting.brought.iter().all(Option::is_some) {
            let messages = meeting.brought.iter_mut().filter_map(Option::take).collect();
            drop(table);
            let result = combine(messages);
            table = self.lock();
            if let Some(meeting) = table.meetings.get_mut(&key) {
                meeting.result = Some(result);
            }
            self.came.notify_all();
        }
        self.take(table, key)
    }

    /// Waits for the result of a meeting, and clears it away after the last replica.
    fn take(&self, mut table: MutexGuard<'_, Table>, key: Key) -> Result<Message, Broken> {
        let limit = self.limit(key);
        let start = Instant::now();
        loop {
            // A result counts even if the group broke since: all replicas then end after the same step.
            let meeting = table.meetings.get_mut(&key).expect("a meeting stays until all replicas have left");
            if let Some(result) = meeting.result.clone() {
                meeting.left -= 1;
                if meeting.left == 0 {
                    table.meetings.remove(&key);
                }
                return Ok(result);
            }
            if let Some(verdict) = &table.verdict {
                return Err(verdict.clone());
            }
            let meeting = &table.meetings[&key];
            let Some(rest) = limit.checked_sub(start.elapsed()) else {
                let missing = missing(meeting);
                return Err(self.fail(&mut table, late(&missing, key, limit)));
            };
            table = self.came.wait_timeout(table, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn missing(meeting: &Meeting) -> Vec<usize> {
    (0..meeting.brought.len()).filter(|rank| meeting.brought[*rank].is_none()).collect()
}

fn late(missing: &[usize], key: Key, limit: Duration) -> String {
    let names: Vec<String> = missing.iter().map(usize::to_string).collect();
    let who = if names.len() == 1 { "replica" } else { "replicas" };
    format!(
        "{who} {} did not come to the {key} within {} s; if nothing hangs and the step is only slow, raise --timeout",
        names.join(", "),
        limit.as_secs_f64()
    )
}

impl LocalReplica {
    /// The sum of all replicas' vectors.
    fn sum(&self, key: Key, share: Message) -> Result<Arc<Vec<f32>>, Broken> {
        let sum = |messages: Vec<Message>| {
            let shares = messages.into_iter().map(|message| match message {
                Message::Floats(values) => Arc::unwrap_or_clone(values),
                Message::Halves(values) => {
                    let mut share = self.buffer();
                    values.into_par_iter().map(bf16::to_f32).collect_into_vec(&mut share);
                    share
                }
                _ => Vec::new(),
            });
            Message::Floats(Arc::new(tree_sum(shares.collect(), |used| self.group.keep(used))))
        };
        self.group.meet(self.rank, key, share, sum).map(floats)
    }
}

impl Collective for LocalReplica {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.size
    }

    fn all_reduce(&self, key: Key, values: Vec<f32>) -> Result<Arc<Vec<f32>>, Broken> {
        self.sum(key, Message::Floats(Arc::new(values)))
    }

    fn all_reduce_bf16(&self, key: Key, values: Vec<bf16>) -> Result<Arc<Vec<f32>>, Broken> {
        self.sum(key, Message::Halves(values))
    }

    fn buffer(&self) -> Vec<f32> {
        let spare = self.group.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut values = spare.unwrap_or_default();
        values.clear();
        values
    }

    fn recycle(&self, result: Arc<Vec<f32>>) {
        // The last replica to let go hands the memory back.
        if let Some(values) = Arc::into_inner(result) {
            self.group.keep(values);
        }
    }

    fn all_gather(&self, key: Key, values: Vec<f64>) -> Result<Arc<Vec<Vec<f64>>>, Broken> {
        let gather = |messages: Vec<Message>| {
            let shares = messages.into_iter().map(|message| match message {
                Message::Values(values) => values,
                _ => Vec::new(),
            });
            Message::Gathered(Arc::new(shares.collect()))
        };
        match self.group.meet(self.rank, key, Message::Values(values), gather)? {
            Message::Gathered(all) => Ok(all),
            _ => Ok(Arc::default()),
        }
    }

    fn broadcast(&self, key: Key, root: usize, values: Option<Vec<f32>>) -> Result<Arc<Vec<f32>>, Broken> {
        let message = values.map_or(Message::Nothing, |values| Message::Floats(Arc::new(values)));
        self.group.meet(self.rank, key, message, |mut messages| messages.swap_remove(root)).map(floats)
    }

    fn barrier(&self, key: Key) -> Result<(), Broken> {
        self.group.meet(self.rank, key, Message::Nothing, |_| Message::Nothing).map(|_| ())
    }

    fn abort(&self, reason: String) {
        let mut table = self.group.lock();
        self.group.fail(&mut table, reason);
    }
}

fn floats(message: Message) -> Arc<Vec<f32>> {
    match message {
        Message::Floats(values) => values,
        _ => Arc::default(),
    }
}

/// Sums vectors of equal length in a binary tree over their indices; the tree, and so every bit, is the same for any
/// number of threads. `used` gets the memory of the shares that were added.
fn tree_sum(mut shares: Vec<Vec<f32>>, mut used: impl FnMut(Vec<f32>)) -> Vec<f32> {
    let mut stride = 1;
    while stride < shares.len() {
        for left in (0..shares.len() - stride).step_by(2 * stride) {
            let right = std::mem::take(&mut shares[left + stride]);
            let chunk = 1 << 16;
            let pairs = shares[left].par_chunks_mut(chunk).zip(right.par_chunks(chunk));
            pairs.for_each(|(left, right)| left.iter_mut().zip(right).for_each(|(left, right)| *left += right));
            used(right);
        }
        stride *= 2;
    }
    shares.swap_remove(0)
}
