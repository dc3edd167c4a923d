//! The sum of all replicas' gradients.
//!
//! Replicas of one process add them on the device, in place, if they share one or its backend moves tensors between
//! devices; each adds its share of the tensors. Gradients that go to other processes, or are rounded to bf16, are reduced
//! in buckets, some of them during the backward pass.

use std::sync::Arc;

use burn::tensor::Tensor;
use tracing::info_span;

use super::bucket::{Share, parts};
use super::config::ReducePrecision;
use super::device::HostBackend;
use super::key::{Key, Operation};
use super::overlap::{Early, Reduced, in_buckets};
use super::replica::Replica;
use super::sharding::{all_gather, lengths, reduce_scatter};
use super::task::Task;
use crate::error::Result;

const GRADIENTS: Operation = Operation::Gradients { bucket: 0 };

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// The sum of all replicas' gradients, which is the mean over the samples of the step; where the update is in parts, of
    /// the tensors that this replica updates. The reduction of the gradients in `early` has begun already.
    pub(super) fn reduce(
        &self,
        mut gradients: Vec<Tensor<B, 1>>,
        early: Option<Arc<Early<B>>>,
    ) -> Result<Vec<Tensor<B, 1>>> {
        if self.collective.size() == 1 {
            return Ok(gradients);
        }
        let _phase = info_span!("all-reduce").entered();
        if self.shares_tensors() && self.plan.reduce_precision == ReducePrecision::F32 {
            let (key, lengths) = (self.key(GRADIENTS), lengths(&gradients));
            let own = reduce_scatter::<B>(&self.collective, key, gradients, &self.device)?;
            let key = Key { micro_batch: 1, ..key };
            return match &self.own {
                Some(_) => Ok(own),
                None => Ok(all_gather(&self.collective, key, own, &lengths, &self.device, true)?),
            };
        }
        let sums = match (&self.overlap, early) {
            (Some(overlap), Some(early)) => overlap.sums(&early)?,
            _ => Vec::new(),
        };
        let (mut is_done, buckets) = (vec![false; gradients.len()], sums.len());
        for Reduced { kernels, sum } in sums {
            let places: Vec<usize> = kernels.iter().map(|kernel| kernel.place).collect();
            places.iter().for_each(|place| is_done[*place] = true);
            self.replace(&mut gradients, &places, sum);
        }
        // One bucket at a time, to save memory. The numbers of the early buckets are in use.
        let left = (0..gradients.len()).filter(|place| !is_done[*place]);
        for (i, places) in in_buckets(left, |place| gradients[*place].dims()[0]).into_iter().enumerate() {
            let key = self.key(Operation::Gradients { bucket: if i == 0 { 0 } else { buckets + i } });
            let shares = places.iter().map(|place| gradients[*place].clone()).collect();
            let collective = self.collective.as_ref();
            let sum = Share::new(collective, shares)?.all_reduce(collective, key, self.plan.reduce_precision)?;
            self.replace(&mut gradients, &places, sum);
        }
        Ok(match &self.own {
            Some(own) => gradients[own.clone()].to_vec(),
            None => gradients,
        })
    }

    pub(super) fn shares_tensors(&self) -> bool {
        (B::CAN_SHARE || self.plan.world.devices.len() == 1) && !self.collective.is_distributed()
    }

    /// Replaces the gradients at `places` by their sums, one after the other.
    fn replace(&self, gradients: &mut [Tensor<B, 1>], places: &[usize], sum: Tensor<B, 1>) {
        let lengths: Vec<usize> = places.iter().map(|place| gradients[*place].dims()[0]).collect();
        places.iter().zip(parts(sum, &lengths)).for_each(|(place, sum)| gradients[*place] = sum);
    }
}
