//! Comparison of short runs with several batch sizes, which [`super::search`] selects and the caller runs.

use kiln_system::{Error, Result};
use serde::Serialize;

use super::search::{MemoryLine, Trial, is_past_peak, predicted, unit};

/// The share of the best throughput that suffices: a larger batch needs more memory and makes fewer updates per epoch.
const ENOUGH: f64 = 0.95;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// By size.
    pub(super) trials: Vec<Trial>,
    /// The memory of the device in bytes, if known.
    pub(super) memory_limit: Option<u64>,
    /// The largest size that fits.
    pub largest: Option<usize>,
    /// The smallest size above it that does not.
    pub too_large: Option<usize>,
    /// The size with the highest throughput, and its images per second.
    pub best: Option<(usize, f64)>,
    /// The suggested size: the smallest with at least 95 % of that throughput.
    pub suggestion: Option<usize>,
    /// Memory as a function of the size, from at least two sizes.
    pub memory: Option<MemoryLine>,
}

impl Analysis {
    /// Compares trials, in any order.
    ///
    /// # Errors
    /// [`Error::Data`] for a trial without a throughput.
    pub fn new(mut trials: Vec<Trial>, memory_limit: Option<u64>) -> Result<Self> {
        trials.sort_by_key(|it| it.batch_size);
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        if let Some(it) = trials.iter().find(|it| it.images_per_second().is_some_and(|rate| !is_rate(rate))) {
            let (size, rate) = (it.batch_size, it.images_per_second().unwrap_or(0.0));
            return Err(Error::Data(format!(
                "batch size {size} was measured at '{rate}' images per second, which must be above 0; measure it again"
            )));
        }
        let rates = || trials.iter().filter_map(|it| Some((it.batch_size, it.images_per_second()?)));
        let best = rates().reduce(|best, it| if it.1 > best.1 { it } else { best });
        let suggestion = best.and_then(|best| rates().find(|it| it.1 >= ENOUGH * best.1)).map(|it| it.0);
        let largest = rates().next_back().map(|it| it.0);
        let too_large = trials.iter().find(|it| !it.fits() && Some(it.batch_size) > largest).map(|it| it.batch_size);
        let used: Vec<(usize, u64)> = trials.iter().filter_map(Trial::memory).collect();
        let memory = MemoryLine::through(&used).filter(|_| used.len() > 1);
        Ok(Self { memory_limit, largest, too_large, best, suggestion, memory, trials })
    }

    /// Whether the search ended because larger sizes were slower.
    pub(super) fn is_past_peak(&self) -> bool {
        self.too_large.is_none() && is_past_peak(&self.trials)
    }

    /// Whether the search ended because the next size would not fit by prediction.
    fn is_memory_full(&self) -> bool {
        let largest = self.largest.unwrap_or(0);
        self.too_large.is_none() && predicted(&self.trials, self.memory_limit) < largest + unit(largest)
    }

    /// The throughput of a size as a share of the best.
    pub fn share(&self, batch_size: usize) -> Option<f64> {
        let trial = self.trials.iter().find(|it| it.batch_size == batch_size)?;
        Some(trial.images_per_second()? / self.best?.1)
    }

    /// Notes for the reader, a sentence or two each.
    pub(super) fn caveats(&self) -> Vec<String> {
        let mut caveats = Vec::new();
        let Some(largest) = self.largest else {
            let size = self.trials[0].batch_size;
            let remedy = if size > 1 { "try fewer" } else { "use a smaller model or smaller images" };
            return vec![format!("no suggestion: a batch of {size} does not fit into memory; {remedy}")];
        };
        if self.is_past_peak() {
            caveats.push("Larger sizes were not tried: the two largest were slower than a smaller one.".into());
        } else if self.is_memory_full() {
            caveats.push("Larger sizes were not tried: they would take more than 90 % of the memory.".into());
        } else if self.too_large.is_none() && self.best.is_some_and(|(size, _)| size == largest) {
            caveats.push("The largest size tried was the fastest; a larger one may be even faster.".into());
        }
        caveats.push(
            "Another batch size is another experiment and needs another learning rate: see 'train find lr'.".into(),
        );
        caveats
    }
}
