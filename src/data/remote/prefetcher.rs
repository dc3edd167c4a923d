//! Samples of an object store, fetched before they are read.
//!
//! Threads ask for what the order of samples needs next, as long as that fits into `data.prefetch_mb`; neighbours in a
//! shard come with one request. What was read goes to the cache on the disk, if there is one and it is not needed last.
//! A sample that nobody announced is fetched when it is read.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::{Debug, Formatter};
use std::io::Error as Failure;
use std::ops::Range;
use std::sync::{Arc, Weak};

use kiln_engine::parallel::Foresight;
use kiln_system::{Error, Result};
use parking_lot::{Condvar, Mutex};

use super::REQUESTS;
use super::cache::{Cache, read};
use super::prefetch_buffer::{MOST, PrefetchBuffer, Request, Slot, State};
use crate::config::{DataConfig, Order};
use crate::index::Index;
use crate::samples::{Need, Samples};
use crate::store::Store;

/// Bytes that are fetched for nothing instead of by a request of their own.
const GAP: u64 = 64 << 10;

/// Most bytes of a request for several samples.
const LARGEST: u64 = 8 << 20;

/// Samples that are looked at together for neighbours.
const TOGETHER: usize = 256;

pub(crate) struct Prefetcher {
    store: Arc<dyn Store>,
    samples: Arc<dyn Samples>,
    buffer: Mutex<PrefetchBuffer>,
    work: Condvar,
    arrived: Condvar,
    limit: u64,
    /// All samples in the order in which they lie, and where each is in it; empty if neighbours are not needed soon.
    lying: Vec<u32>,
    rank: Vec<u32>,
}

struct PrefetchStream {
    prefetcher: Weak<Prefetcher>,
    stream: u64,
}

impl Prefetcher {
    /// Reads `samples` of `store`.
    pub(crate) fn new(store: Arc<dyn Store>, samples: Arc<dyn Samples>, config: &DataConfig) -> Result<Self> {
        let index = samples.index();
        let buffer = PrefetchBuffer::new(index.len(), Cache::open(config, index)?);
        let mut lying: Vec<u32> = Vec::new();
        if config.order == Order::Window && buffer.cache.is_some() {
            lying.extend(0..index.len() as u32);
            lying.sort_by_cached_key(|id| (index.file(*id as usize), index.offset(*id as usize)));
        }
        let mut rank = vec![0; lying.len()];
        (0..).zip(&lying).for_each(|(at, id)| rank[*id as usize] = at);
        let (buffer, work, arrived) = (Mutex::new(buffer), Condvar::new(), Condvar::new());
        Ok(Self { store, samples, buffer, work, arrived, limit: config.prefetch_mb << 20, lying, rank })
    }

    fn fetch(&self, id: u32, range: Range<u64>) -> std::result::Result<Vec<u8>, String> {
        self.store.read(self.index().file(id as usize), range).map_err(|reason| reason.to_string())
    }

    fn failed(&self, id: u32, fault: &str) -> Error {
        Error::io("read", self.store.path(self.index().file(id as usize)))(Failure::other(fault))
    }

    /// A sample, wherever it is.
    fn take(&self, id: u32) -> Result<Arc<[u8]>> {
        let mut buffer = self.buffer.lock();
        while matches!(buffer.slots.get(&id), Some(Slot { state: State::OnItsWay, .. })) {
            self.arrived.wait(&mut buffer);
        }
        let there = match buffer.slots.get(&id).map(|slot| &slot.state) {
            Some(State::Failed(fault)) => return Err(self.failed(id, fault)),
            Some(State::Here(bytes)) => Some(bytes.clone()),
            _ => None,
        };
        let is_last = buffer.count(id, u64::from(self.index().length(id as usize)));
        let on_disk = buffer.cache.as_ref().filter(|cache| there.is_none() && cache.has(id));
        let on_disk = on_disk.map(|cache| cache.reader(id));
        if buffer.held < self.limit {
            self.work.notify_one();
        }
        let bytes = match (there, on_disk) {
            (Some(bytes), _) => bytes,
            (None, place) => {
                drop(buffer);
                let length = self.index().length(id as usize);
                let bytes: Arc<[u8]> = match place.and_then(|place| read(place, length)) {
                    Some(bytes) => bytes.into(),
                    None => self.fetch_alone(id)?,
                };
                buffer = self.buffer.lock();
                bytes
            }
        };
        if is_last {
            let next = buffer.order.used(id);
            if let Some(cache) = &mut buffer.cache {
                cache.expect(id, next);
                if cache.admit(id, next)? {
                    cache.write(id, &bytes)?;
                }
            }
        }
        Ok(bytes)
    }

    /// A sample from the store, and no longer from the disk.
    fn fetch_alone(&self, id: u32) -> Result<Arc<[u8]>> {
        if let Some(cache) = &mut self.buffer.lock().cache {
            cache.remove(id)?;
        }
        let bytes = self.fetch(id, self.index().range(id as usize)).map_err(|fault| self.failed(id, &fault))?;
        Ok(bytes.into())
    }

    /// Carries requests out until nobody expects a sample.
    fn serve(&self) {
        let mut buffer = self.buffer.lock();
        while !buffer.order.streams.is_empty() {
            if buffer.requests.is_empty() {
                self.plan(&mut buffer);
            }
            let Some(Request { range, ids }) = buffer.requests.pop_front() else {
                self.work.wait(&mut buffer);
                continue;
            };
            drop(buffer);
            let fetched = self.fetch(ids[0], range.clone());
            let part = |id: u32, bytes: &[u8]| {
                let own = self.index().range(id as usize);
                bytes[(own.start - range.start) as usize..(own.end - range.start) as usize].into()
            };
            buffer = self.buffer.lock();
            for id in ids {
                let state = match &fetched {
                    Ok(bytes) => State::Here(part(id, bytes)),
                    Err(fault) => State::Failed(fault.clone()),
                };
                buffer.deliver(id, state, u64::from(self.index().length(id as usize)));
            }
            self.arrived.notify_all();
        }
        buffer.threads -= 1;
    }

    /// Makes requests for what is needed next.
    fn plan(&self, buffer: &mut PrefetchBuffer) {
        if buffer.held >= self.limit || buffer.slots.len() >= MOST {
            buffer.sweep(self.index());
        }
        let mut wanted = Vec::new();
        while wanted.len() < TOGETHER && buffer.held < self.limit && buffer.slots.len() < MOST {
            let PrefetchBuffer { order, cache, .. } = buffer;
            let expect = |id, time| cache.iter_mut().for_each(|cache| cache.expect(id, time));
            let Some(next) = order.advance(expect) else { break };
            if buffer.order.next(next.id) > next.time {
                // It was read before its turn came.
                continue;
            }
            let on_disk = buffer.cache.as_ref().is_some_and(|cache| cache.has(next.id));
            let state = if on_disk { State::OnDisk } else { State::OnItsWay };
            let slot = buffer.slots.entry(next.id).or_insert_with(|| {
                if !on_disk {
                    buffer.held += u64::from(self.index().length(next.id as usize));
                    wanted.push(next.id);
                }
                Slot { uses: VecDeque::new(), state }
            });
            slot.uses.push_back((next.time, next.times));
        }
        let index = self.index();
        wanted.sort_by_key(|id| (index.file(*id as usize), index.offset(*id as usize)));
        let mut rest = &wanted[..];
        while !rest.is_empty() {
            let request = self.request(buffer, &mut rest);
            buffer.requests.push_back(request);
        }
        if buffer.requests.len() > 1 {
            self.work.notify_all();
        }
    }

    /// A request for the first of `wanted` and its neighbours, which are taken from there.
    fn request(&self, buffer: &mut PrefetchBuffer, wanted: &mut &[u32]) -> Request {
        let index = self.index();
        let mut request = Request { range: index.range(wanted[0] as usize), ids: vec![wanted[0]] };
        let file = index.file(wanted[0] as usize);
        let fits = |request: &Request, id: u32| {
            let range = index.range(id as usize);
            let near = range.start >= request.range.end && range.start - request.range.end <= GAP;
            index.file(id as usize) == file && near && range.end - request.range.start <= LARGEST
        };
        // Neighbours that are needed while half of the cache is read from here on, if the cache has room until then.
        let room = buffer.cache.as_ref().map_or(0, Cache::room) / buffer.order.streams.len().max(1) as u32;
        let there = buffer.order.next(wanted[0]).saturating_add(room / 2);
        let until = there.min(buffer.order.now.saturating_add(room));
        let is_soon = |buffer: &PrefetchBuffer, id: u32| {
            let is_there = buffer.slots.contains_key(&id) || buffer.cache.as_ref().is_some_and(|cache| cache.has(id));
            !is_there && buffer.order.next(id) <= until
        };
        let expect = |buffer: &mut PrefetchBuffer, id: u32| {
            buffer.held += u64::from(index.length(id as usize));
            buffer.slots.insert(id, Slot { uses: VecDeque::new(), state: State::OnItsWay });
        };
        let mut first = wanted[0];
        while let Some(rank) = self.rank.get(first as usize).and_then(|rank| rank.checked_sub(1)) {
            let id = self.lying[rank as usize];
            let range = index.range(id as usize);
            let near = index.file(id as usize) == file && request.range.start.saturating_sub(range.end) <= GAP;
            if !near || request.range.end - range.start > LARGEST || !is_soon(buffer, id) {
                break;
            }
            expect(buffer, id);
            request.range.start = range.start;
            request.ids.push(id);
            first = id;
        }
        let mut last = wanted[0];
        *wanted = &wanted[1..];
        loop {
            let next = wanted.first().copied().filter(|id| fits(&request, *id));
            let behind = self.rank.get(last as usize).and_then(|rank| self.lying.get(*rank as usize + 1)).copied();
            let behind = behind.filter(|id| next != Some(*id) && fits(&request, *id) && is_soon(buffer, *id));
            if let Some(id) = behind {
                expect(buffer, id);
                last = id;
            } else if let Some(id) = next {
                *wanted = &wanted[1..];
                last = id;
            } else {
                break;
            }
            request.range.end = index.range(last as usize).end;
            request.ids.push(last);
        }
        request
    }
}

impl Samples for Prefetcher {
    fn index(&self) -> &Index {
        self.samples.index()
    }

    fn bytes(&self, id: usize) -> Result<Cow<'_, [u8]>> {
        Ok(self.take(id as u32)?.to_vec().into())
    }

    fn bytes_again(&self, id: usize) -> Result<Option<Vec<u8>>> {
        Ok(Some(self.fetch_alone(id as u32)?.to_vec()))
    }

    fn place(&self, id: usize) -> String {
        self.samples.place(id)
    }

    fn foresee(self: Arc<Self>, needs: Box<dyn Iterator<Item = Need> + Send>) -> Option<Foresight> {
        let mut buffer = self.buffer.lock();
        let stream = buffer.order.open(needs);
        for number in buffer.threads..REQUESTS {
            let prefetcher = self.clone();
            let thread = std::thread::Builder::new().name(format!("fetch-{number}"));
            // Without threads samples are fetched when they are read.
            buffer.threads += usize::from(thread.spawn(move || prefetcher.serve()).is_ok());
        }
        self.work.notify_one();
        drop(buffer);
        Some(Box::new(PrefetchStream { prefetcher: Arc::downgrade(&self), stream }))
    }
}

impl Drop for PrefetchStream {
    fn drop(&mut self) {
        if let Some(prefetcher) = self.prefetcher.upgrade() {
            let mut buffer = prefetcher.buffer.lock();
            if buffer.order.close(self.stream) {
                buffer.forget(prefetcher.index());
                prefetcher.work.notify_all();
                prefetcher.arrived.notify_all();
            }
        }
    }
}

impl Debug for Prefetcher {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        self.samples.fmt(formatter)
    }
}
