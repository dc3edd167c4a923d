//! Reading ahead in an object, for the walk over its headers.
//!
//! A request fetches a few KiB more than is wanted. While reads follow one another the window doubles, so that an
//! object of small members arrives in few requests; after a jump over a large member it halves, so that contents are
//! not fetched.

use std::cell::RefCell;
use std::io::Result;
use std::sync::Arc;

use bytes::Bytes;

use super::Remote;
use crate::store::ReadAt;

const SMALLEST: u64 = 4 << 10;
const LARGEST: u64 = 4 << 20;

pub(super) struct Window {
    pub(super) remote: Arc<Remote>,
    pub(super) name: String,
    pub(super) length: u64,
    /// What was fetched last, where that begins, and how much to fetch next.
    pub(super) held: RefCell<(Bytes, u64, u64)>,
}

impl ReadAt for Window {
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> Result<()> {
        let mut held = self.held.borrow_mut();
        let end = at.saturating_add(out.len() as u64);
        if end > self.length {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (bytes, start, size) = &mut *held;
        let held_to = *start + bytes.len() as u64;
        if at < *start || end > held_to {
            let follows = at >= *start && at <= held_to + *size;
            *size = if follows { *size * 2 } else { *size / 2 }.clamp(SMALLEST, LARGEST);
            let to = end.max(at.saturating_add(*size)).min(self.length);
            *bytes = self.remote.get(&self.name, at..to)?;
            *start = at;
        }
        let from = (at - *start) as usize;
        out.copy_from_slice(&bytes[from..from + out.len()]);
        Ok(())
    }
}
