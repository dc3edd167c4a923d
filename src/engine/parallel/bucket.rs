//! Gradients that are reduced together, one after the other.

use burn::tensor::Tensor;

use super::collective::Collective;
use super::config::ReducePrecision;
use super::device::HostBackend;
use super::key::{Broken, Key};
use super::sums::{Destination, sum_across};
use super::tensors::joined;

/// A replica's share of the sum of a bucket.
pub(super) struct Share<B: HostBackend> {
    whole: Tensor<B, 1>,
    /// Of the sum, if an engine takes it from device to device, and in its own order.
    destination: Option<Destination<B>>,
}

impl<B: HostBackend> Share<B> {
    /// The share of these gradients.
    pub(super) fn new(collective: &Collective, gradients: Vec<Tensor<B, 1>>) -> Result<Self, Broken> {
        let whole = joined(gradients);
        let devices = collective.devices().filter(|_| !collective.is_ordered());
        let destination = devices.map(|devices| Destination::beside(&whole, devices)).transpose();
        Ok(Self { whole, destination: destination.map_err(|symptom| Broken::Replica(symptom.0))? })
    }

    /// The sum of all replicas' shares, which are sent in `precision`.
    pub(super) fn all_reduce(
        self,
        collective: &Collective,
        key: Key,
        precision: ReducePrecision,
    ) -> Result<Tensor<B, 1>, Broken> {
        sum_across(collective, key, self.whole, self.destination, precision)
    }
}

/// The tensors of these lengths in a sum, one after the other.
pub(super) fn parts<B: HostBackend>(sum: Tensor<B, 1>, lengths: &[usize]) -> Vec<Tensor<B, 1>> {
    let mut end = 0;
    let mut part = |length: &usize| {
        end += length;
        sum.clone().slice(end - length..end)
    };
    if lengths.len() == 1 { vec![sum] } else { lengths.iter().map(&mut part).collect() }
}
