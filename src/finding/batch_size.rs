//! What batch sizes cost and gain: short runs of several sizes, compared.
//!
//! Which sizes to try is for [`super::search`] to say, and how to run them for the caller.

use serde::{Deserialize, Serialize};

use super::search::{is_past_peak, predicted, unit};
use crate::error::{Error, Result};

/// More throughput than this part of the best is not worth a larger batch: it needs more memory, and fewer updates are
/// made per epoch.
const ENOUGH: f64 = 0.95;

/// A batch size that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Images of a replica in a step.
    pub batch_size: usize,
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How a trial went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It trained.
    Fits {
        /// Images per second, of all replicas.
        images_per_second: f64,
        /// The most memory in use, in bytes; 0 if it is not known.
        memory_bytes: u64,
    },
    /// It did not fit into memory.
    TooLarge {
        /// What was said about it.
        why: String,
    },
}

impl Trial {
    /// Whether it fits into memory.
    pub fn fits(&self) -> bool {
        matches!(self.outcome, Outcome::Fits { .. })
    }

    /// Its images per second, if it fits.
    pub fn images_per_second(&self) -> Option<f64> {
        match self.outcome {
            Outcome::Fits { images_per_second, .. } => Some(images_per_second),
            Outcome::TooLarge { .. } => None,
        }
    }

    /// Its size and its memory, where both are known.
    pub fn memory(&self) -> Option<(usize, u64)> {
        match self.outcome {
            Outcome::Fits { memory_bytes, .. } if memory_bytes > 0 => Some((self.batch_size, memory_bytes)),
            _ => None,
        }
    }
}

/// Memory as a linear function of the batch size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemoryLine {
    /// Bytes whatever the size: weights, optimizer, the program.
    pub fixed: f64,
    /// Bytes of each image more.
    pub per_image: f64,
}

impl MemoryLine {
    /// The line of least squares through sizes and their bytes: a level one through one point, none through none.
    pub fn through(points: &[(usize, u64)]) -> Option<Self> {
        let count = points.len() as f64;
        let points = || points.iter().map(|(size, bytes)| (*size as f64, *bytes as f64));
        let (size, bytes) = points().fold((0.0, 0.0), |sum, it| (sum.0 + it.0 / count, sum.1 + it.1 / count));
        let covariance: f64 = points().map(|it| (it.0 - size) * (it.1 - bytes)).sum();
        let variance: f64 = points().map(|it| (it.0 - size).powi(2)).sum();
        let per_image = if variance > 0.0 { covariance / variance } else { 0.0 };
        (count > 0.0).then_some(Self { fixed: bytes - per_image * size, per_image })
    }

    /// Bytes of a size.
    pub fn bytes(&self, size: f64) -> f64 {
        self.fixed + self.per_image * size
    }

    /// The largest size that needs no more than these bytes; any size if more images need no more.
    pub fn largest(&self, bytes: f64) -> usize {
        // Beyond what `usize` holds, the conversion stops at its ends.
        if self.per_image > 0.0 { ((bytes - self.fixed) / self.per_image).floor() as usize } else { usize::MAX }
    }
}

/// Trials and what follows from them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// Every trial, by size.
    pub trials: Vec<Trial>,
    /// The memory of the device in bytes, if known.
    pub memory_limit: Option<u64>,
    /// The largest size that fits.
    pub largest: Option<usize>,
    /// The smallest size above it that does not.
    pub too_large: Option<usize>,
    /// The size with the most images per second, and those.
    pub best: Option<(usize, f64)>,
    /// The size to use: the smallest with at least 95 % of that.
    pub suggestion: Option<usize>,
    /// What memory depends on, from two sizes on.
    pub memory: Option<MemoryLine>,
}

impl Analysis {
    /// Compares trials, in any order.
    ///
    /// # Errors
    /// [`Error::Usage`] without a trial; [`Error::Data`] naming one that cannot be, or that there is twice.
    pub fn new(mut trials: Vec<Trial>, memory_limit: Option<u64>) -> Result<Self> {
        if trials.is_empty() {
            return Err(Error::usage("no batch size was tried; name one to begin with, as in --batch-size 8"));
        }
        trials.sort_by_key(|it| it.batch_size);
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        for it in &trials {
            let size = it.batch_size;
            if size == 0 || it.images_per_second().is_some_and(|rate| !is_rate(rate)) {
                let rate = it.images_per_second().unwrap_or(0.0);
                return Err(Error::Data(format!(
                    "batch size {size} cannot have made '{rate}' images per second; both are above 0: try it again"
                )));
            }
        }
        if let Some(two) = trials.windows(2).find(|two| two[0].batch_size == two[1].batch_size) {
            let size = two[0].batch_size;
            return Err(Error::Data(format!("batch size {size} was tried twice; give each size once")));
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
    pub fn is_past_peak(&self) -> bool {
        self.too_large.is_none() && is_past_peak(&self.trials)
    }

    /// Whether memory, not a failure, ended the search.
    fn is_memory_full(&self) -> bool {
        let largest = self.largest.unwrap_or(0);
        self.too_large.is_none() && predicted(&self.trials, self.memory_limit) < largest + unit(largest)
    }

    /// A trial by its size.
    pub fn trial(&self, batch_size: usize) -> Option<&Trial> {
        self.trials.iter().find(|it| it.batch_size == batch_size)
    }

    /// The images per second of a size as a part of the most.
    pub fn share(&self, batch_size: usize) -> Option<f64> {
        Some(self.trial(batch_size)?.images_per_second()? / self.best?.1)
    }

    /// What a reader must know, a sentence or two each.
    pub fn caveats(&self) -> Vec<String> {
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
            caveats.push("The largest size tried was the fastest one; a larger one may be faster still.".into());
        }
        caveats.push(
            "Another batch size is another experiment: the learning rate that suits it is another one too, as 'train \
             find lr' shows."
                .into(),
        );
        caveats
    }
}
