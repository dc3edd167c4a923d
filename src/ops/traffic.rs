//! Copies between the host and devices: those of steps counted for the whole process, all shown by `--profile` as
//! spans.

use std::cell::Cell;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::DType;
use serde::{Deserialize, Serialize};
use tracing::span::EnteredSpan;
use tracing::{Span, info_span};

/// Copies between the host and devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes from the host to devices.
    pub bytes_to_device: u64,
    /// Bytes from devices to the host.
    pub bytes_to_host: u64,
    /// Copies to the host for which a thread waited at once.
    pub blocking_reads: u64,
}

impl Traffic {
    /// What came after `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            bytes_to_device: self.bytes_to_device - before.bytes_to_device,
            bytes_to_host: self.bytes_to_host - before.bytes_to_host,
            blocking_reads: self.blocking_reads - before.blocking_reads,
        }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, more: Self) {
        self.bytes_to_device += more.bytes_to_device;
        self.bytes_to_host += more.bytes_to_host;
        self.blocking_reads += more.blocking_reads;
    }
}

static TO_DEVICE: AtomicU64 = AtomicU64::new(0);
static TO_HOST: AtomicU64 = AtomicU64::new(0);
static READS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IN_STEP: Cell<bool> = const { Cell::new(true) };
}

/// A span between two steps: what its thread copies meanwhile belongs to none. The replicas of a process are not at the
/// same place, so that one may be in a step while another saves.
pub struct BetweenSteps {
    was_in_step: bool,
    _span: EnteredSpan,
}

impl BetweenSteps {
    pub fn enter(span: Span) -> Self {
        Self { was_in_step: IN_STEP.replace(false), _span: span.entered() }
    }
}

impl Drop for BetweenSteps {
    fn drop(&mut self) {
        IN_STEP.set(self.was_in_step);
    }
}

/// All copies in steps of this process so far.
pub fn traffic() -> Traffic {
    let [bytes_to_device, bytes_to_host, blocking_reads] =
        [&TO_DEVICE, &TO_HOST, &READS].map(|count| count.load(Ordering::Relaxed));
    Traffic { bytes_to_device, bytes_to_host, blocking_reads }
}

/// A span in which the host waits for `count` values of a device.
pub fn reading(count: usize, dtype: DType) -> EnteredSpan {
    add(&READS, 1);
    info_span!("copy to host", bytes = counted(&TO_HOST, count, dtype)).entered()
}

#[cfg(any(feature = "cuda", feature = "tch", feature = "wgpu"))]
/// A span in which the host takes `count` values that a device began to send earlier.
pub(crate) fn late_reading(count: usize, dtype: DType) -> EnteredSpan {
    info_span!("late copy to host", bytes = counted(&TO_HOST, count, dtype)).entered()
}

/// A span in which the host writes `count` values to a device.
pub(crate) fn writing(count: usize, dtype: DType) -> EnteredSpan {
    info_span!("copy to device", bytes = counted(&TO_DEVICE, count, dtype)).entered()
}

fn counted(total: &AtomicU64, count: usize, dtype: DType) -> usize {
    let bytes = count * dtype.size();
    add(total, bytes as u64);
    bytes
}

fn add(total: &AtomicU64, count: u64) {
    if IN_STEP.get() {
        total.fetch_add(count, Ordering::Relaxed);
    }
}
