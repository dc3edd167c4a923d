//! Trials of batch sizes, and the next size to try: doubles it while it fits, then bisects. The search ends once the
//! two largest sizes are slower than a smaller one.
//!
//! A size that does not fit by extrapolation of the last two is never tried: running out of memory can kill a process,
//! even another one. No size is tried twice, so a search terminates.

use serde::{Deserialize, Serialize};

/// The share of the memory to use at most.
const FILL: f64 = 0.9;
/// Larger sizes are multiples of this.
const MULTIPLE: usize = 8;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Images of a replica in a step.
    pub batch_size: usize,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Fits {
        /// Images per second, of all replicas.
        images_per_second: f64,
        /// Peak memory, in bytes; 0 if unknown.
        memory_bytes: u64,
    },
    /// It did not fit into memory.
    TooLarge { why: String },
}

impl Trial {
    pub fn fits(&self) -> bool {
        matches!(self.outcome, Outcome::Fits { .. })
    }

    pub(super) fn images_per_second(&self) -> Option<f64> {
        match self.outcome {
            Outcome::Fits { images_per_second, .. } => Some(images_per_second),
            Outcome::TooLarge { .. } => None,
        }
    }

    /// Its size and memory, if known.
    pub(super) fn memory(&self) -> Option<(usize, u64)> {
        match self.outcome {
            Outcome::Fits { memory_bytes, .. } if memory_bytes > 0 => Some((self.batch_size, memory_bytes)),
            _ => None,
        }
    }
}

/// Memory as a linear function of the batch size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemoryLine {
    /// Bytes independent of the size: weights, optimizer, the program.
    pub fixed: f64,
    /// Bytes per image.
    pub per_image: f64,
}

impl MemoryLine {
    /// The least-squares line through sizes and their bytes; constant for one point, `None` for none.
    pub fn through(points: &[(usize, u64)]) -> Option<Self> {
        let count = points.len() as f64;
        let points = || points.iter().map(|(size, bytes)| (*size as f64, *bytes as f64));
        let (size, bytes) = points().fold((0.0, 0.0), |sum, it| (sum.0 + it.0 / count, sum.1 + it.1 / count));
        let covariance: f64 = points().map(|it| (it.0 - size) * (it.1 - bytes)).sum();
        let variance: f64 = points().map(|it| (it.0 - size).powi(2)).sum();
        let per_image = if variance > 0.0 { covariance / variance } else { 0.0 };
        (count > 0.0).then_some(Self { fixed: bytes - per_image * size, per_image })
    }

    pub(super) fn bytes(&self, size: f64) -> f64 {
        self.fixed + self.per_image * size
    }

    /// The largest size that needs at most `bytes`; `usize::MAX` if memory does not grow with the size.
    pub fn largest(&self, bytes: f64) -> usize {
        // The conversion saturates.
        if self.per_image > 0.0 { ((bytes - self.fixed) / self.per_image).floor() as usize } else { usize::MAX }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub start: usize,
    /// The largest size to try, such as the images of a replica.
    pub largest: usize,
    /// The memory of the device in bytes, if known.
    pub memory: Option<u64>,
    pub trials: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { start: MULTIPLE, largest: usize::MAX, memory: None, trials: 12 }
    }
}

/// The batch size to try after these trials, in any order; `None` if the search is over.
///
/// The largest size that fits is then known up to [`unit()`], unless the search ended by the number of trials or by
/// decreasing throughput.
pub fn next(trials: &[Trial], bounds: &Bounds) -> Option<usize> {
    if trials.len() >= bounds.trials || bounds.largest == 0 || is_past_peak(trials) {
        return None;
    }
    if trials.is_empty() {
        return Some(bounds.start.clamp(1, bounds.largest));
    }
    let fits = trials.iter().filter(|it| it.fits()).map(|it| it.batch_size).max().unwrap_or(0);
    let above = |it: &&Trial| !it.fits() && it.batch_size > fits;
    let too_large = trials.iter().filter(above).map(|it| it.batch_size).min();
    let most = bounds.largest.min(predicted(trials, bounds.memory));
    let wanted = match too_large {
        Some(too_large) => fits.midpoint(too_large),
        None => fits.saturating_mul(2),
    };
    let unit = unit(fits);
    let size = wanted.min(most) / unit * unit;
    // The largest allowed size need not be a multiple.
    let size = if too_large.is_none() && wanted >= bounds.largest && most == bounds.largest { most } else { size };
    (size > fits).then_some(size)
}

/// Whether the two largest sizes that fit are slower than a smaller one.
pub(super) fn is_past_peak(trials: &[Trial]) -> bool {
    let mut rates: Vec<(usize, f64)> =
        trials.iter().filter_map(|it| Some((it.batch_size, it.images_per_second()?))).collect();
    rates.sort_by_key(|(size, _)| *size);
    let Some((smaller, largest)) = rates.split_last_chunk::<2>() else { return false };
    smaller.iter().any(|(_, rate)| largest.iter().all(|(_, slower)| slower < rate))
}

/// The resolution of the search: 1 below 8, else 8 or, if larger, an eighth of the power of two below the size.
pub fn unit(size: usize) -> usize {
    if size < MULTIPLE { 1 } else { ((1 << size.ilog2()) / MULTIPLE).max(MULTIPLE) }
}

/// The largest size that fits by extrapolation of the last two; with fewer, any size, unless the memory is already
/// full.
pub(super) fn predicted(trials: &[Trial], memory: Option<u64>) -> usize {
    let Some(memory) = memory else { return usize::MAX };
    let room = FILL * memory as f64;
    let mut used: Vec<(usize, u64)> = trials.iter().filter_map(Trial::memory).collect();
    used.sort_unstable();
    match used.last() {
        Some((size, bytes)) if *bytes as f64 > room => *size,
        _ => MemoryLine::through(&used[used.len().saturating_sub(2)..]).map_or(usize::MAX, |line| line.largest(room)),
    }
}
