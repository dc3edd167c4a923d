//! The sum of all replicas' gradients.
//!
//! Replicas of one process add them on the device, in place, if they share one or its backend moves tensors between
//! devices. Gradients that go to other processes, or are rounded to bf16, are reduced in buckets, some of them during the
//! backward pass: as vectors on the host, or as tensors if the engine between the processes takes them.

use std::sync::Arc;

use burn::tensor::Tensor;
use tracing::info_span;

use super::bucket::{Share, Sum};
use super::collective::Collective;
use super::config::ReducePrecision;
use super::device::HostBackend;
use super::key::{Broken, Key, Operation};
use super::overlap::{Early, Reduced, in_buckets};
use super::replica::Replica;
use super::sums::folded;
use super::task::Task;
use crate::error::Result;
use crate::ops::statistics::Part;
use crate::ops::{Shared, primitive, tensor};

/// The gradients in no bucket.
const GRADIENTS: Operation = Operation::Gradients { bucket: 0 };

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// The sum of all replicas' gradients, which is the mean over the samples of the step. The reduction of the
    /// gradients in `early` has begun already.
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
            return Ok(sum_here::<B>(self.collective.as_ref(), self.key(GRADIENTS), gradients, &self.device)?);
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
        Ok(gradients)
    }

    /// Whether all replicas can use each other's tensors.
    pub(super) fn shares_tensors(&self) -> bool {
        (B::CAN_SHARE || self.plan.world.devices.len() == 1) && !self.collective.is_distributed()
    }

    /// Replaces the gradients at `places` by their sums, one after the other.
    fn replace(&self, gradients: &mut [Tensor<B, 1>], places: &[usize], sum: Sum<B>) {
        let lengths: Vec<usize> = places.iter().map(|place| gradients[*place].dims()[0]).collect();
        let sums = sum.parts(&lengths, self.collective.as_ref(), &self.device);
        places.iter().zip(sums).for_each(|(place, sum)| gradients[*place] = sum);
    }
}

/// The sums of the tensors of all replicas of this process, in the tree over their ranks. The last replica to arrive
/// computes them, each pair in the memory of its first tensor.
///
/// # Errors
/// Those of [`Collective::meet`].
pub fn sum_here<B: HostBackend>(
    collective: &Collective,
    key: Key,
    own: Vec<Tensor<B, 1>>,
    device: &B::Device,
) -> std::result::Result<Vec<Tensor<B, 1>>, Broken> {
    let shared = |part: Part| Arc::unwrap_or_clone(part.downcast::<Vec<Shared<B>>>().expect("all bring tensors"));
    let combine = |parts: Vec<Part>| -> Part {
        let add = |left: Vec<_>, right| left.into_iter().zip(right).map(|(left, right)| B::add(left, right)).collect();
        Arc::new(folded(parts.into_iter().map(|part| Some(shared(part))).collect(), add))
    };
    let own: Vec<Shared<B>> = own.into_iter().map(|own| B::share(primitive(own))).collect();
    let sums = shared(collective.meet(key, Arc::new(own), &combine)?);
    Ok(sums.into_iter().map(|sum| tensor(B::adopt(sum, device))).collect())
}
