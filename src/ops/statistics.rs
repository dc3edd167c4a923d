//! The statistics of a synchronised batch-norm, and the interface by which replicas exchange them.
//!
//! A replica's share is (count, mean, M2) per channel, with M2 the sum of squared deviations from the replica's own
//! mean. All shares are combined in one pass, in f64 and in replica order (Chan, Golub, LeVeque, "Updating formulae and
//! a pairwise algorithm for computing sample variances", 1979): never `E[x^2] - E[x]^2`, which loses all digits if the
//! mean is large against the deviation.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// The pass a message belongs to; forward and backward of a layer are different messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Moments of the activations.
    Forward,
    /// Sums over the gradients.
    Backward,
}

impl Direction {
    /// Combines the values of all replicas: moments by their counts, sums by addition.
    pub fn total(self, shares: &[Vec<f64>]) -> Vec<f64> {
        match self {
            Self::Forward => Moments::combine(shares).into_values(),
            Self::Backward => (0..shares[0].len()).map(|i| shares.iter().map(|share| share[i]).sum()).collect(),
        }
    }
}

/// Combines the values of all replicas; `|all| all` keeps them.
pub type Combine = fn(Vec<Vec<f64>>) -> Vec<Vec<f64>>;

/// A message between the replicas of a process, of any type.
pub type Payload = Arc<dyn Any + Send + Sync>;

/// The replicas whose samples form one batch for batch-norm. Implemented in `parallel`.
///
/// A backward pass cannot return an error: if the group is broken, these functions unwind, and the replica catches that
/// and reports the error.
pub trait StatisticsGroup: Debug + Send + Sync {
    /// Sends this replica's values for one layer and direction and returns those of all replicas, in their order, as
    /// `combine` leaves them.
    fn gather(&self, layer: usize, direction: Direction, values: Vec<f64>, combine: Combine) -> Arc<Vec<Vec<f64>>>;

    /// The same with parts of any type, if the replicas share a device and a process; otherwise `None`.
    fn meet(
        &self,
        _layer: usize,
        _direction: Direction,
        _part: Payload,
        _combine: &dyn Fn(Vec<Payload>) -> Payload,
    ) -> Option<Payload> {
        None
    }

    /// The same with a flat tensor, a [`super::Shared`] of f32, if tensors go from device to device between processes:
    /// those of all replicas, one after the other, all of one length.
    fn exchange(&self, _layer: usize, _direction: Direction, _own: Payload) -> Option<Payload> {
        None
    }

    /// Says whether every sample has `each` values per channel in this layer, on all replicas; `is_so` waits for the
    /// device to find that out, and is called where `each` is new.
    fn agree(&self, _layer: usize, _each: f64, is_so: &dyn Fn() -> bool) {
        assert!(is_so(), "a sample has as many values per channel on every replica");
    }
}

/// One layer in a synchronised forward and backward pass.
#[derive(Debug, Clone)]
pub struct Synchronized {
    pub group: Arc<dyn StatisticsGroup>,
    /// The layer's number in forward order: the same on all replicas.
    pub layer: usize,
    /// How many samples of the batch each of them has. One without any still sends every message, with weight zero.
    pub samples: Arc<[usize]>,
    pub replica: usize,
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
    /// As a message: count, means, M2.
    fn into_values(self) -> Vec<f64> {
        [vec![self.count], self.mean, self.m2].concat()
    }

    /// The inverse of [`Moments::into_values`].
    fn from_values(values: &[f64]) -> Self {
        let (mean, m2) = values[1..].split_at(values.len() / 2);
        Self { count: values[0], mean: mean.to_vec(), m2: m2.to_vec() }
    }

    /// Combines messages in their order; one with count zero adds nothing.
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
    /// Whether this replica has a sample.
    pub fn is_present(&self) -> bool {
        self.samples[self.replica] > 0
    }

    /// The moments of the whole group's batch.
    pub fn moments(&self, mut local: Moments) -> Moments {
        if !self.is_present() {
            local.count = 0.0;
            local.mean.fill(0.0);
            local.m2.fill(0.0);
        }
        let combine = |shares: Vec<Vec<f64>>| vec![Direction::Forward.total(&shares)];
        Moments::from_values(&self.group.gather(self.layer, Direction::Forward, local.into_values(), combine)[0])
    }

    /// The sums of the whole group, added in replica order.
    pub fn sums(&self, mut local: Vec<f64>) -> Vec<f64> {
        if !self.is_present() {
            local.fill(0.0);
        }
        let combine = |shares: Vec<Vec<f64>>| vec![Direction::Backward.total(&shares)];
        self.group.gather(self.layer, Direction::Backward, local, combine)[0].clone()
    }
}
