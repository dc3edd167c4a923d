//! How long others waited for each worker, and which of them is slow, from what each one worked in every step.
//!
//! Workers of one stage do the same work, and their processes send about as much. The others are taken to have waited for
//! one of them for as long as it worked and sent longer than the median worker: of a slow one and many equal ones that is
//! how long each of these waited. Of an even number the faster of the two in the middle counts, so that of two the slower
//! one is found.

use std::collections::VecDeque;

use kiln_engine::parallel::Work;

use super::record::{Cause, ReplicaRecord};

/// A worker is slow if it worked, or worked and sent, so many times as long as the median one...
const FACTOR: f64 = 1.5;
/// ...in every part of a minute...
const MINUTE: f64 = 60.0;
const PART: f64 = 5.0;
/// ...and others waited for it for at least this part of the time.
const LEAST: f64 = 0.05;

/// Sums over steps, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    work: f64,
    loading: f64,
    sending: f64,
    waited: f64,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.work += other.work;
        self.loading += other.loading;
        self.sending += other.sending;
        self.waited += other.waited;
    }

    /// What others wait for.
    fn busy(&self) -> f64 {
        self.work + self.sending
    }
}

/// The steps of some seconds.
#[derive(Debug)]
struct Part {
    begin: f64,
    steps: f64,
    workers: Vec<Sum>,
}

#[derive(Debug)]
pub struct Stragglers {
    /// Workers of a stage.
    pub replicas: usize,
    /// Those of the last minute.
    parts: VecDeque<Part>,
    /// By worker, since the beginning.
    waited: Vec<f64>,
    devices: Vec<usize>,
    /// The last step that was measured.
    step: Option<usize>,
    /// Who was found to be slow, by worker, and has not caught up since.
    slow: Vec<bool>,
}

impl Stragglers {
    pub fn new(replicas: usize) -> Self {
        Self { replicas, parts: VecDeque::new(), waited: Vec::new(), devices: Vec::new(), step: None, slow: Vec::new() }
    }

    /// Takes what each worker did in `step`, at `now` in seconds of a monotonic clock. It stands for all steps since
    /// the last call.
    pub fn mark(&mut self, now: f64, step: usize, work: &[Work]) {
        let steps = self.step.replace(step).map_or(1, |last| step.saturating_sub(last).max(1)) as f64;
        self.waited.resize(work.len(), 0.0);
        self.slow.resize(work.len(), false);
        self.devices = work.iter().map(|it| it.device).collect();
        self.forget(now);
        if self.parts.back().is_none_or(|part| now - part.begin >= PART) {
            self.parts.push_back(Part { begin: now, steps: 0.0, workers: vec![Sum::default(); work.len()] });
        }
        let Some(part) = self.parts.back_mut() else { return };
        part.steps += steps;
        for (stage, work) in work.chunks(self.replicas).enumerate() {
            let usual = median(work.iter().map(|it| it.seconds + it.sending));
            for (worker, it) in (stage * self.replicas..).zip(work) {
                let waited = steps * (it.seconds + it.sending - usual).max(0.0);
                let [work, loading, sending] = [it.seconds, it.loading, it.sending].map(|seconds| steps * seconds);
                part.workers[worker].add(&Sum { work, loading, sending, waited });
                self.waited[worker] += waited;
            }
        }
    }

    fn forget(&mut self, now: f64) {
        while self.parts.front().is_some_and(|part| now - part.begin > MINUTE) {
            self.parts.pop_front();
        }
    }

    /// What is known of each worker at `now`, without its place; and who has been found to be slow since the last call,
    /// with how many times as long as the median one it worked or, if its network is the cause, worked and sent.
    pub fn look(&mut self, now: f64) -> (Vec<ReplicaRecord>, Vec<(usize, f64)>) {
        self.forget(now);
        let steps: f64 = self.parts.iter().map(|part| part.steps).sum();
        let sums: Vec<Sum> = (0..self.waited.len()).map(|worker| self.minute(worker)).collect();
        let is_whole = self.parts.front().is_some_and(|part| now - part.begin >= MINUTE - PART);
        let (mut records, mut found) = (Vec::new(), Vec::new());
        for (worker, sum) in sums.iter().enumerate() {
            let others = &sums[worker / self.replicas * self.replicas..][..self.replicas];
            let usual = |of: fn(&Sum) -> f64| median(others.iter().map(of));
            let excess = |of: fn(&Sum) -> f64| of(sum) - usual(of);
            let is_slow = is_whole && self.is_slow_throughout(worker) && sum.waited >= LEAST * MINUTE;
            let causes = [
                (Cause::Device, excess(|it| it.work - it.loading)),
                (Cause::Loader, excess(|it| it.loading)),
                (Cause::Network, excess(|it| it.sending)),
            ];
            let cause = causes.into_iter().max_by(|left, right| left.1.total_cmp(&right.1)).map(|(cause, _)| cause);
            if is_slow && !self.slow[worker] {
                let of = if cause == Some(Cause::Network) { Sum::busy } else { |it: &Sum| it.work };
                found.push((worker, of(sum) / usual(of)));
            }
            self.slow[worker] = is_slow;
            records.push(ReplicaRecord {
                replica: worker % self.replicas,
                stage: worker / self.replicas,
                device: self.devices[worker],
                work_seconds: sum.work / steps.max(1.0),
                loading_seconds: sum.loading / steps.max(1.0),
                sending_seconds: sum.sending / steps.max(1.0),
                waited_minute: sum.waited,
                waited: self.waited[worker],
                slow: cause.filter(|_| is_slow),
                ..ReplicaRecord::default()
            });
        }
        (records, found)
    }

    fn minute(&self, worker: usize) -> Sum {
        let mut sum = Sum::default();
        self.parts.iter().for_each(|part| sum.add(&part.workers[worker]));
        sum
    }

    /// Whether a worker was slow in every part of the last minute.
    fn is_slow_throughout(&self, worker: usize) -> bool {
        let first = worker / self.replicas * self.replicas;
        self.parts.iter().all(|part| {
            let is_above = |of: fn(&Sum) -> f64| {
                let usual = median(part.workers[first..][..self.replicas].iter().map(of));
                of(&part.workers[worker]) >= FACTOR * usual
            };
            is_above(|it| it.work) || is_above(Sum::busy)
        })
    }
}

/// The lower one of two in the middle; 0 of nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}
