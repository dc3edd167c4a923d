//! How much memory an input takes: allocations of Rust are counted, those of C show in what is resident.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn add(bytes: usize) {
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: the system's allocator does everything but the counting.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size);
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Memory from here on.
pub struct Meter {
    live: usize,
    resident: Option<usize>,
}

impl Meter {
    pub fn start() -> Self {
        let live = LIVE.load(Relaxed);
        PEAK.store(live, Relaxed);
        // Makes the peak the current number; only on Linux.
        let resident = fs::write("/proc/self/clear_refs", "5").ok().and_then(|()| peak_resident());
        Self { live, resident }
    }

    /// The most bytes taken since the start.
    pub fn peak(&self) -> usize {
        let counted = PEAK.load(Relaxed).saturating_sub(self.live);
        let resident = self.resident.and_then(|before| Some(peak_resident()?.saturating_sub(before)));
        counted.max(resident.unwrap_or(0))
    }
}

fn peak_resident() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok().map(|kib| kib << 10)
}
