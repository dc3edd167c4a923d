//! Samples of an object store on a local disk, of limited size.
//!
//! Since the future is known, what is needed last makes room (Belady, 1966); a sample that is itself needed last is not
//! kept. One sparse file has a place for every sample, at a multiple of 4 KiB; what makes room is punched out of it.
//! The file belongs to these objects in their present state, and a later start finds what it holds. Every sample has a
//! checksum.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use kiln_system::file;
use kiln_system::{Error, Result, shown};
use rustix::fs::{FallocateFlags, fallocate};
use sha2::{Digest, Sha256};

use super::access_order::NEVER;
use crate::config::DataConfig;
use crate::index::Index;

/// The unit in which a file system frees space.
const BLOCK: u64 = 4096;

/// Checksum and length, before a sample.
const HEAD: u64 = 8;

pub(super) struct Cache {
    file: Arc<File>,
    path: PathBuf,
    /// Where the place of each sample begins, and the end.
    places: Vec<u64>,
    /// When each sample that is there is needed next.
    next: Vec<Option<u32>>,
    /// The same, in order.
    order: BTreeSet<(u32, u32)>,
    used: u64,
    limit: u64,
}

impl Cache {
    /// Opens the file for the samples of `index` in `data.cache_dir`; `None` if there is to be none.
    pub(super) fn open(config: &DataConfig, index: &Index) -> Result<Option<Self>> {
        let folder = &config.cache_dir;
        if folder.as_os_str().is_empty() {
            return Ok(None);
        }
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let mut places = vec![0];
        for id in 0..index.len() {
            let bytes = (HEAD + u64::from(index.length(id))).next_multiple_of(BLOCK);
            places.push(places[id] + bytes);
        }
        let mut hash = Sha256::new();
        hash.update(format!("{:?}", index.head.files));
        hash.update(index.identity(0..index.len()));
        let digits: String = hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        // Each process has a file of its own.
        for number in 0.. {
            let path = folder.join(format!("{digits}-{number}.samples"));
            let file = file::open_to_write(&path).map_err(Error::io("open", &path))?;
            match file.try_lock() {
                Ok(()) => {
                    let (next, order, limit) = (vec![None; index.len()], BTreeSet::new(), config.cache_dir_mb << 20);
                    let file = Arc::new(file);
                    let mut cache = Self { file, path, places, next, order, used: 0, limit };
                    cache.find(index)?;
                    return Ok(Some(cache));
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(reason)) => return Err(Error::io("lock", &path)(reason)),
            }
        }
        Ok(None)
    }

    /// Finds what an earlier start has left.
    fn find(&mut self, index: &Index) -> Result<()> {
        let there = self.file.metadata().map_err(Error::io("read", &self.path))?.len();
        self.file.set_len(self.end()).map_err(Error::io("write", &self.path))?;
        // Behind the end, to see whether the file system can.
        self.free(self.end()..self.end() + BLOCK)?;
        for id in 0..index.len() {
            if self.places[id] >= there {
                break;
            }
            let mut head = [0; HEAD as usize];
            self.file.read_exact_at(&mut head, self.places[id]).map_err(Error::io("read", &self.path))?;
            if head[4..] == index.length(id).to_le_bytes() && !self.admit(id as u32, NEVER)? {
                self.free(self.places[id]..self.places[id + 1])?;
            }
        }
        Ok(())
    }

    fn end(&self) -> u64 {
        self.places.last().copied().unwrap_or_default()
    }

    pub(super) fn has(&self, id: u32) -> bool {
        self.next[id as usize].is_some()
    }

    /// How many samples of middling size have room.
    pub(super) fn room(&self) -> u32 {
        (self.limit / (self.end() / self.next.len().max(1) as u64).max(1)) as u32
    }

    /// What is needed to read a sample without holding the cache.
    pub(super) fn reader(&self, id: u32) -> (Arc<File>, u64) {
        (self.file.clone(), self.places[id as usize])
    }

    /// Nothing is known of the future any more.
    pub(super) fn forget(&mut self) {
        let there: Vec<u32> = self.order.iter().map(|(_, id)| *id).collect();
        there.into_iter().for_each(|id| self.expect(id, NEVER));
    }

    /// Changes when a sample is needed next, if it is there.
    pub(super) fn expect(&mut self, id: u32, next: u32) {
        if let Some(before) = &mut self.next[id as usize] {
            self.order.remove(&(*before, id));
            self.order.insert((next, id));
            *before = next;
        }
    }

    /// Makes room for a sample that is needed at `next`; `false` if all that is there is needed before.
    pub(super) fn admit(&mut self, id: u32, next: u32) -> Result<bool> {
        let at = id as usize;
        let bytes = self.places[at + 1] - self.places[at];
        if self.has(id) || bytes > self.limit {
            return Ok(false);
        }
        while self.used + bytes > self.limit {
            let Some(last) = self.order.last().copied().filter(|(time, _)| *time > next) else { return Ok(false) };
            self.remove(last.1)?;
        }
        self.used += bytes;
        self.next[at] = Some(next);
        self.order.insert((next, id));
        Ok(true)
    }

    /// Removes a sample.
    pub(super) fn remove(&mut self, id: u32) -> Result<()> {
        let place = self.places[id as usize]..self.places[id as usize + 1];
        let Some(next) = self.next[id as usize].take() else { return Ok(()) };
        self.order.remove(&(next, id));
        self.used -= place.end - place.start;
        self.free(place)
    }

    fn free(&self, place: std::ops::Range<u64>) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&*self.file, flags, place.start, place.end - place.start).map_err(|reason| {
            Error::Data(format!(
                "cannot free a part of '{}': {reason}; choose a data.cache_dir on a local disk (ext4, xfs, btrfs, tmpfs)",
                shown(&self.path)
            ))
        })
    }

    /// Writes a sample that was admitted.
    pub(super) fn write(&self, id: u32, bytes: &[u8]) -> Result<()> {
        let head = [crc32fast::hash(bytes).to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
        let written = self.file.write_all_at(&[&head, bytes].concat(), self.places[id as usize]);
        written.map_err(Error::io("write", &self.path))
    }
}

/// The sample of `length` bytes at `place`; `None` if it is not whole.
pub(super) fn read((file, place): (Arc<File>, u64), length: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEAD as usize + length as usize];
    file.read_exact_at(&mut bytes, place).ok()?;
    let sample = bytes.split_off(HEAD as usize);
    let head = [crc32fast::hash(&sample).to_le_bytes(), length.to_le_bytes()].concat();
    (bytes == head).then_some(sample)
}
