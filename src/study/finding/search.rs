//! Selects the next batch size to try: doubles it while it fits, then bisects. The search ends once the two largest
//! sizes are slower than a smaller one.
//!
//! A size that does not fit by extrapolation of the last two is never tried: running out of memory can kill a process,
//! even another one. No size is tried twice, so a search terminates.

use super::trial::{MemoryLine, Trial};

/// The share of the memory to use at most.
const FILL: f64 = 0.9;
/// Larger sizes are multiples of this.
const MULTIPLE: usize = 8;

/// The limits of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The first size to try.
    pub start: usize,
    /// The largest size to try, such as the images of a replica.
    pub largest: usize,
    /// The memory of the device in bytes, if known.
    pub memory: Option<u64>,
    /// The most trials.
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
pub fn is_past_peak(trials: &[Trial]) -> bool {
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
pub fn predicted(trials: &[Trial], memory: Option<u64>) -> usize {
    let Some(memory) = memory else { return usize::MAX };
    let room = FILL * memory as f64;
    let mut used: Vec<(usize, u64)> = trials.iter().filter_map(Trial::memory).collect();
    used.sort_unstable();
    match used.last() {
        Some((size, bytes)) if *bytes as f64 > room => *size,
        _ => MemoryLine::through(&used[used.len().saturating_sub(2)..]).map_or(usize::MAX, |line| line.largest(room)),
    }
}
