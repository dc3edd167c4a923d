//! The statistics of a synchronised batch-norm, and the interface by which replicas exchange them.
//!
//! A replica's share is (count, mean, M2) per channel, with M2 the sum of squared deviations from the replica's own
//! mean. All shares are combined in one pass, in f64 and in replica order (Chan, Golub, LeVeque, "Updating formulae and
//! a pairwise algorithm for computing sample variances", 1979): never `E[x^2] - E[x]^2`, which loses all digits if the
//! mean is large against the deviation.

use std::any::Any;
use std::fmt::{Debug, Formatter};
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
    /// Combines the values of all replicas in their order: sums by addition; count, means and M2 by the counts, so that
    /// a replica with count zero adds nothing.
    pub fn total(self, shares: &[Vec<f64>]) -> Vec<f64> {
        let sum = |of: &dyn Fn(&[f64]) -> f64| shares.iter().map(|share| of(share)).sum::<f64>();
        let length = shares[0].len();
        if self == Self::Backward {
            return (0..length).map(|i| sum(&|share| share[i])).collect();
        }
        let channels = length / 2;
        let count = sum(&|share| share[0]);
        let mut total = vec![count];
        total.extend((1..=channels).map(|i| sum(&|share| share[0] * share[i]) / count));
        for i in 1..=channels {
            total.push(sum(&|share| share[channels + i] + share[0] * (share[i] - total[i]).powi(2)));
        }
        total
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
pub trait StatisticsGroup: Send + Sync {
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

impl Debug for dyn StatisticsGroup {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("StatisticsGroup")
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

impl Synchronized {
    /// Whether this replica has a sample.
    pub fn is_present(&self) -> bool {
        self.samples[self.replica] > 0
    }

    /// The sums of the whole group, or count, means and M2 of its batch.
    pub fn total(&self, direction: Direction, mut own: Vec<f64>) -> Vec<f64> {
        if !self.is_present() {
            own.fill(0.0);
        }
        let combine: Combine = match direction {
            Direction::Forward => |shares| vec![Direction::Forward.total(&shares)],
            Direction::Backward => |shares| vec![Direction::Backward.total(&shares)],
        };
        self.group.gather(self.layer, direction, own, combine)[0].clone()
    }
}
