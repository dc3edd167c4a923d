//! What is expected of an object store, under way, and there.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::access_order::AccessOrder;
use super::cache::Cache;
use crate::index::Index;

/// Most samples that are expected at the same time.
pub(super) const MOST: usize = 1 << 14;

pub(super) struct Slot {
    /// When, and how often then.
    pub(super) uses: VecDeque<(u32, u32)>,
    pub(super) state: State,
}

pub(super) enum State {
    OnItsWay,
    OnDisk,
    Here(Arc<[u8]>),
    /// The second half of a sentence.
    Failed(String),
}

/// A part of an object that holds some samples.
pub(super) struct Request {
    pub(super) range: Range<u64>,
    pub(super) ids: Vec<u32>,
}

/// What is expected, under way, and there.
pub(super) struct PrefetchBuffer {
    pub(super) order: AccessOrder,
    pub(super) slots: HashMap<u32, Slot>,
    pub(super) requests: VecDeque<Request>,
    /// Bytes of the slots that are here or on their way.
    pub(super) held: u64,
    pub(super) cache: Option<Cache>,
    swept: u32,
    pub(super) threads: usize,
}

impl PrefetchBuffer {
    pub(super) fn new(samples: usize, cache: Option<Cache>) -> Self {
        let order = AccessOrder::new(samples, cache.is_some());
        let (slots, requests) = (HashMap::new(), VecDeque::new());
        Self { order, slots, requests, held: 0, cache, swept: 0, threads: 0 }
    }

    /// Counts a read of a sample of `length` bytes; says whether it was the last at its time.
    pub(super) fn count(&mut self, id: u32, length: u64) -> bool {
        let Some(slot) = self.slots.get_mut(&id) else { return true };
        if let Some((_, times)) = slot.uses.front_mut().filter(|(_, times)| *times > 1) {
            *times -= 1;
            return false;
        }
        slot.uses.pop_front();
        if slot.uses.is_empty() {
            self.release(id, length);
        }
        true
    }

    fn release(&mut self, id: u32, length: u64) {
        if self.slots.remove(&id).is_some_and(|slot| !matches!(slot.state, State::OnDisk)) {
            self.held -= length;
        }
    }

    /// Takes up what came for a sample. What came along with others goes to the disk.
    pub(super) fn deliver(&mut self, id: u32, state: State, length: u64) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.state = state;
        if !slot.uses.is_empty() {
            return;
        }
        if let (State::Here(bytes), Some(cache)) = (&slot.state, &mut self.cache) {
            // If the disk fails, the reading of a sample says so.
            let next = self.order.next(id);
            let _fetched_again =
                cache.admit(id, next).and_then(|is_kept| if is_kept { cache.write(id, bytes) } else { Ok(()) });
        }
        self.release(id, length);
    }

    /// Gives up what was announced and never read.
    pub(super) fn sweep(&mut self, index: &Index) {
        let now = self.order.now;
        if now < self.swept.saturating_add(MOST as u32) {
            return;
        }
        self.swept = now;
        let is_late = |slot: &Slot| slot.uses.back().is_some_and(|(time, _)| time.saturating_add(MOST as u32) < now);
        let late = self.slots.iter().filter(|(_, slot)| is_late(slot) && !matches!(slot.state, State::OnItsWay));
        let late: Vec<u32> = late.map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.release(id, u64::from(index.length(id as usize))));
    }

    /// Forgets what was expected.
    pub(super) fn forget(&mut self, index: &Index) {
        let waiting: Vec<u32> = self.requests.drain(..).flat_map(|request| request.ids).collect();
        let there = self.slots.iter().filter(|(_, slot)| !matches!(slot.state, State::OnItsWay));
        let gone: Vec<u32> = there.map(|(id, _)| *id).chain(waiting).collect();
        gone.into_iter().for_each(|id| self.release(id, u64::from(index.length(id as usize))));
        self.slots.values_mut().for_each(|slot| slot.uses.clear());
        self.cache.iter_mut().for_each(Cache::forget);
        self.swept = 0;
    }
}
