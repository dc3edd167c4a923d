//! Which samples will be needed, and when: what the order of samples says about the future.
//!
//! Every replica has a stream of needs. Time is counted in samples of a stream, so that it is the same for all replicas
//! of a process, which go on in step. Validation has times of its own stream, and is expected again one epoch later.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::samples::Need;

/// The time of what is not known to be needed again.
pub(super) const NEVER: u32 = u32::MAX;

/// A sample that will be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) id: u32,
    pub(super) time: u32,
    /// How often it is read then.
    pub(super) times: u32,
}

/// The needs of one replica.
pub(super) struct Stream {
    needs: Box<dyn Iterator<Item = Need> + Send>,
    /// PrefetchStream, and not yet taken by [`AccessOrder::advance`].
    queue: VecDeque<(usize, Use)>,
    time: u32,
    /// The epoch announced last, and when it began.
    epoch: (usize, u32),
    is_over: bool,
    is_validation: bool,
}

/// The needs of all replicas of this process.
#[derive(Default)]
pub(super) struct AccessOrder {
    pub(super) streams: BTreeMap<u64, Stream>,
    opened: u64,
    /// The next two uses of each sample.
    uses: Vec<[u32; 2]>,
    /// Whether to know all uses until the end of the next epoch, and not only the next ones.
    far: bool,
    /// The time of the last training sample that was read.
    pub(super) now: u32,
    /// Samples of a stream in an epoch; 0 until it is known.
    period: u32,
}

impl AccessOrder {
    pub(super) fn new(samples: usize, far: bool) -> Self {
        Self { uses: vec![[NEVER; 2]; samples], far, ..Self::default() }
    }

    /// Begins a stream; returns its number.
    pub(super) fn open(&mut self, needs: Box<dyn Iterator<Item = Need> + Send>) -> u64 {
        let (queue, time) = (VecDeque::new(), self.now);
        let stream = Stream { needs, queue, time, epoch: (0, time), is_over: false, is_validation: false };
        self.opened += 1;
        self.streams.insert(self.opened, stream);
        self.opened
    }

    /// Ends a stream; returns whether it was the last one, after which nothing is known.
    pub(super) fn close(&mut self, stream: u64) -> bool {
        self.streams.remove(&stream);
        if self.streams.is_empty() {
            self.uses.fill([NEVER; 2]);
            (self.now, self.period) = (0, 0);
        }
        self.streams.is_empty()
    }

    /// The use that comes first of those not yet returned. `changed` gets the samples whose next use was not known.
    pub(super) fn advance(&mut self, mut changed: impl FnMut(u32, u32)) -> Option<Use> {
        for stream in self.streams.values_mut() {
            let horizon = |stream: &Stream| stream.queue.front().map(|(epoch, _)| epoch + usize::from(self.far));
            while !stream.is_over && horizon(stream).is_none_or(|last| self.far && stream.epoch.0 <= last) {
                let Some(need) = stream.needs.next() else {
                    stream.is_over = true;
                    break;
                };
                if need.epoch > stream.epoch.0 {
                    self.period = stream.time - stream.epoch.1;
                    stream.epoch = (need.epoch, stream.time);
                }
                stream.is_validation = need.is_validation;
                let all = stream.announce(&need);
                let length = all.len() as u32;
                for sample in all {
                    let uses = &mut self.uses[sample.id as usize];
                    match uses {
                        // Several replicas read a sample that is mixed into others, in the same step.
                        [next, _] if sample.time.abs_diff(*next) < length => {}
                        [next, _] if *next == NEVER || need.is_validation => {
                            *next = sample.time;
                            changed(sample.id, sample.time);
                        }
                        [_, then] if *then == NEVER => *then = sample.time,
                        _ => {}
                    }
                    stream.queue.push_back((need.epoch, sample));
                }
            }
        }
        let first = self.streams.values_mut().filter(|stream| !stream.queue.is_empty());
        let first = first.min_by_key(|stream| stream.queue.front().map(|(_, sample)| sample.time))?;
        first.queue.pop_front().map(|(_, sample)| sample)
    }

    /// When a sample is needed next.
    pub(super) fn next(&self, id: u32) -> u32 {
        self.uses[id as usize][0]
    }

    /// A sample has been read; returns when it is needed again.
    pub(super) fn used(&mut self, id: u32) -> u32 {
        let uses = &mut self.uses[id as usize];
        let time = uses[0];
        *uses = [uses[1], NEVER];
        let is_training = self.streams.values().any(|stream| !stream.is_validation);
        let validating = self.streams.values().any(|stream| stream.is_validation);
        if time != NEVER && is_training && !validating {
            self.now = self.now.max(time);
        }
        if uses[0] == NEVER && validating && self.period > 0 {
            uses[0] = self.now.saturating_add(self.period);
        }
        uses[0]
    }
}

impl Stream {
    /// The uses of a need, each sample once.
    fn announce(&mut self, need: &Need) -> Vec<Use> {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        let mut all: Vec<Use> = Vec::new();
        for id in &need.ids {
            match counts.get(id) {
                Some(at) => all[*at].times += 1,
                None => {
                    counts.insert(*id, all.len());
                    all.push(Use { id: *id, time: self.time, times: 1 });
                }
            }
        }
        self.time = self.time.saturating_add(all.len() as u32).min(NEVER - 1);
        all
    }
}
