//! The sum of all replicas' gradients.
//!
//! Replicas of one process add them on the device, in place, if they share one or its backend moves tensors between
//! devices; each adds its share of the tensors. Gradients that go to other processes, or are rounded to bf16, are
//! reduced in buckets, some of them during the backward pass.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Tensor;
use kiln_system::Result;
use tracing::info_span;

use super::overlap::{Overlap, Reduced, in_buckets};
use super::sharding::{all_gather, lengths, reduce_scatter};
use super::tensors::parts;
use super::{Collective, Early, HostBackend, Key, Operation, Plan, ReducePrecision, Share};
use crate::nn::Kernel;

/// How a replica gets the sums of all replicas' gradients.
pub(super) struct Reduction<B: HostBackend> {
    collective: Arc<Collective>,
    device: B::Device,
    precision: ReducePrecision,
    /// Whether replicas use each other's tensors.
    pub(super) shares_tensors: bool,
    /// The places of the tensors that this replica updates, if the update is in parts.
    pub(super) own: Option<Range<usize>>,
    way: Way<B>,
}

enum Way<B: HostBackend> {
    /// There is one replica.
    None,
    InMemory,
    /// With other processes, some of them during the backward pass, unless that is recorded.
    InBuckets(Option<Overlap<B>>),
}

impl<B: HostBackend> Reduction<B> {
    /// Of the gradients of a model with these `kernels`, of which this replica updates those at the places `own`, or
    /// all.
    pub(super) fn new(
        collective: Arc<Collective>,
        kernels: Vec<Kernel>,
        plan: &Plan,
        own: Option<Range<usize>>,
        device: B::Device,
    ) -> Result<Self> {
        let precision = plan.reduce_precision;
        let shares_tensors = (B::CAN_SHARE || plan.world.devices.len() == 1) && !collective.is_distributed();
        let way = if collective.size() == 1 {
            Way::None
        } else if shares_tensors && precision == ReducePrecision::F32 {
            Way::InMemory
        } else if collective.is_distributed() && !plan.recorded.is_on() {
            Way::InBuckets(Some(Overlap::new(kernels, collective.clone(), precision)?))
        } else {
            Way::InBuckets(None)
        };
        Ok(Self { collective, device, precision, shares_tensors, own, way })
    }

    /// Whether gradients may be packed together first: nothing takes single ones out of them.
    pub(super) fn takes_packed(&self) -> bool {
        self.own.is_none() && !matches!(self.way, Way::InBuckets(Some(_)))
    }

    /// What begins to reduce gradients in the last backward pass of a step, whose collectives `key` names.
    pub(super) fn listen(&self, key: Key) -> Option<Arc<Early<B>>> {
        let Way::InBuckets(overlap) = &self.way else { return None };
        overlap.as_ref().map(|overlap| overlap.listen(key, &self.collective))
    }

    /// The sum of all replicas' gradients, which is the mean over the samples of the step; where the update is in
    /// parts, of the tensors that this replica updates. The reduction of those in `early` has begun already.
    pub(super) fn sum(
        &self,
        step: Key,
        gradients: Vec<Tensor<B, 1>>,
        early: Option<Arc<Early<B>>>,
    ) -> Result<Vec<Tensor<B, 1>>> {
        let phase = || info_span!("all-reduce").entered();
        match &self.way {
            Way::None => Ok(gradients),
            Way::InMemory => {
                let _phase = phase();
                let key = Key { operation: Operation::Gradients { bucket: 0 }, ..step };
                let lengths = lengths(&gradients);
                let own = reduce_scatter::<B>(&self.collective, key, gradients, &self.device)?;
                match &self.own {
                    Some(_) => Ok(own),
                    None => self.gather_tensors(Key { micro_batch: 1, ..key }, own, &lengths),
                }
            }
            Way::InBuckets(overlap) => {
                let _phase = phase();
                let sums = match (overlap, early) {
                    (Some(overlap), Some(early)) => overlap.sums(&early)?,
                    _ => Vec::new(),
                };
                let gradients = self.sum_buckets(step, gradients, sums)?;
                Ok(match &self.own {
                    Some(own) => gradients[own.clone()].to_vec(),
                    None => gradients,
                })
            }
        }
    }

    /// Completes the sums of the first buckets by those of the other gradients, one bucket at a time, to save memory.
    fn sum_buckets(
        &self,
        step: Key,
        mut gradients: Vec<Tensor<B, 1>>,
        first: Vec<Reduced<B>>,
    ) -> Result<Vec<Tensor<B, 1>>> {
        let (mut is_done, buckets) = (vec![false; gradients.len()], first.len());
        for Reduced { kernels, sum } in first {
            let places: Vec<usize> = kernels.iter().map(|kernel| kernel.place).collect();
            places.iter().for_each(|place| is_done[*place] = true);
            replace(&mut gradients, &places, sum);
        }
        let left = (0..gradients.len()).filter(|place| !is_done[*place]);
        for (i, places) in in_buckets(left, |place| gradients[*place].dims()[0]).into_iter().enumerate() {
            // The numbers of the first buckets are in use.
            let key = Key { operation: Operation::Gradients { bucket: if i == 0 { 0 } else { buckets + i } }, ..step };
            let shares = places.iter().map(|place| gradients[*place].clone()).collect();
            let sum = Share::new(&self.collective, shares)?.all_reduce(&self.collective, key, self.precision)?;
            replace(&mut gradients, &places, sum);
        }
        Ok(gradients)
    }

    /// All `weights`, those of other replicas from them, where the update is in parts.
    pub(super) fn gather(&self, step: Key, weights: Vec<Tensor<B, 1>>) -> Result<Vec<Tensor<B, 1>>> {
        let Some(own) = &self.own else { return Ok(weights) };
        let key = Key { operation: Operation::Weights, ..step };
        self.gather_tensors(key, weights[own.clone()].to_vec(), &lengths(&weights))
    }

    fn gather_tensors(&self, key: Key, own: Vec<Tensor<B, 1>>, lengths: &[usize]) -> Result<Vec<Tensor<B, 1>>> {
        Ok(all_gather(&self.collective, key, own, lengths, &self.device, self.shares_tensors)?)
    }
}

/// Replaces the gradients at `places` by their sums, one after the other.
fn replace<B: HostBackend>(gradients: &mut [Tensor<B, 1>], places: &[usize], sum: Tensor<B, 1>) {
    let lengths: Vec<usize> = places.iter().map(|place| gradients[*place].dims()[0]).collect();
    places.iter().zip(parts(sum, &lengths)).for_each(|(place, sum)| gradients[*place] = sum);
}
