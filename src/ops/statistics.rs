//! The statistics of a synchronised batch-norm, and the seam through which they reach other replicas.
//!
//! A replica's share is (count, mean, M2) per channel, with M2 the sum of squared deviations from the replica's own
//! mean. Shares are combined pairwise-free in one pass, in f64 and in replica order (Chan, Golub, LeVeque, "Updating
//! formulae and a pairwise algorithm for computing sample variances", 1979): never `E[x^2] - E[x]^2`, which loses all
//! digits when the mean is large against the deviation.

use std::fmt::Debug;
use std::sync::Arc;

/// Which half of the graph asks; forward and backward of a layer are different messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Moments of the activations.
    Forward,
    /// Sums over the gradients.
    Backward,
}

impl Direction {
    /// What all replicas' values are together: moments are combined, sums are added.
    pub fn total(self, shares: &[Vec<f64>]) -> Vec<f64> {
        match self {
            Self::Forward => Moments::combine(shares).into_values(),
            Self::Backward => (0..shares[0].len()).map(|i| shares.iter().map(|share| share[i]).sum()).collect(),
        }
    }
}

/// The replicas whose samples form one batch for batch-norm. Implemented in `parallel`.
pub trait StatisticsGroup: Debug + Send + Sync {
    /// Hands in this replica's values for one layer and direction and returns their [`Direction::total`] over all
    /// replicas, in replica order.
    ///
    /// It cannot return an error, because it is called inside a backward pass: when the group is broken it unwinds, and
    /// the replica's own frame turns that into an error.
    fn total(&self, layer: usize, direction: Direction, values: Vec<f64>) -> Vec<f64>;
}

/// One layer's place in a synchronised forward and backward pass.
#[derive(Debug, Clone)]
pub struct Synchronized {
    /// The replicas.
    pub group: Arc<dyn StatisticsGroup>,
    /// The layer's number in forward order: the same on all replicas.
    pub layer: usize,
    /// False for a replica without a sample of this batch. It still takes part in every message, with weight zero.
    pub present: bool,
}

/// Per-channel moments of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    /// Number of values per channel.
    pub count: f64,
    /// Mean per channel.
    pub mean: Vec<f64>,
    /// Sum of squared deviations from the mean, per channel.
    pub m2: Vec<f64>,
}

impl Moments {
    /// The message form: count, means, M2.
    fn into_values(self) -> Vec<f64> {
        let mut values = Vec::with_capacity(1 + 2 * self.mean.len());
        values.push(self.count);
        values.extend(self.mean);
        values.extend(self.m2);
        values
    }

    /// The inverse of [`Moments::into_values`].
    fn from_values(values: &[f64]) -> Self {
        let (mean, m2) = values[1..].split_at(values.len() / 2);
        Self { count: values[0], mean: mean.to_vec(), m2: m2.to_vec() }
    }

    /// Combines shares in their order; a share with count zero adds nothing.
    fn combine(shares: &[Vec<f64>]) -> Self {
        let channels = shares.first().map_or(0, |share| (share.len() - 1) / 2);
        let count: f64 = shares.iter().map(|share| share[0]).sum();
        let mut mean = vec![0.0; channels];
        let mut m2 = vec![0.0; channels];
        for channel in 0..channels {
            mean[channel] = shares.iter().map(|share| share[0] * share[1 + channel]).sum::<f64>() / count;
            m2[channel] = shares
                .iter()
                .map(|share| share[1 + channels + channel] + share[0] * (share[1 + channel] - mean[channel]).powi(2))
                .sum();
        }
        Self { count, mean, m2 }
    }
}

impl Synchronized {
    /// The moments of the whole group's batch.
    pub fn moments(&self, mut local: Moments) -> Moments {
        if !self.present {
            local.count = 0.0;
            local.mean.fill(0.0);
            local.m2.fill(0.0);
        }
        Moments::from_values(&self.group.total(self.layer, Direction::Forward, local.into_values()))
    }

    /// The sums of the whole group, added in replica order.
    pub fn sums(&self, mut local: Vec<f64>) -> Vec<f64> {
        if !self.present {
            local.fill(0.0);
        }
        self.group.total(self.layer, Direction::Backward, local)
    }
}
