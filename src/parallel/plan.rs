//! Everything about a run that is decided before its first step and the same for all replicas.

use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};

use super::config::ReducePrecision;
use super::device::HostBackend;
use super::events::Position;
use super::world::World;
use crate::data::{
    Augment, Group, HostBatch, ImageSet, Key, Loader, Mixed, Mixing, Request, Sampler, validation_batches,
};
use crate::error::Result;
use crate::model::EvaluationBatch;
use crate::ops::PrecisionKind;
use crate::optim::{OptimConfig, Schedule};
use crate::stop::Stop;

/// Batches that are made ready ahead of the replica.
const PREFETCH: usize = 2;

/// How replicas keep their weights equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Every replica applies the reduced gradient to its own copy (`ddp`).
    Replicated,
    /// The first replica applies it and hands out the weights (`dp`).
    Central,
}

/// An immutable description of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Replicas and devices.
    pub world: World,
    /// How weights are kept equal.
    pub sharing: Sharing,
    /// Whether batch-norm statistics are taken over all replicas.
    pub sync_bn: bool,
    /// The type in which gradients travel.
    pub reduce_precision: ReducePrecision,
    /// What convolutions and the linear layer compute in.
    pub precision: PrecisionKind,
    /// Images per replica and micro-batch.
    pub batch_size: usize,
    /// Epochs.
    pub epochs: usize,
    /// Optimizer steps after which the run ends, at most those of all epochs.
    pub last_step: usize,
    /// The order of samples.
    pub sampler: Sampler,
    /// Of training images.
    pub augment: Augment,
    /// How training images are mixed, if they are.
    pub mixing: Option<Mixing>,
    /// Of validation images: normalisation alone.
    pub plain: Augment,
    /// Training images.
    pub train: Arc<ImageSet>,
    /// Validation images.
    pub validation: Arc<ImageSet>,
    /// Global validation batches; 0 for all.
    pub limit_validation: usize,
    /// Learning rate by step.
    pub schedule: Schedule,
    /// Update rule, clipping, averaging.
    pub optim: OptimConfig,
    /// Random seed of samples and augmentation.
    pub seed: u64,
    /// Save after so many steps; 0 for never. Whatever the interval, the end of the run is saved.
    pub save_every_steps: usize,
    /// Save after so many epochs; 0 for never. With either interval, a validation better than all before is saved too.
    pub save_every_epochs: usize,
    /// Epochs in a row without a better validation after which the run ends; 0 for never.
    pub early_stopping: usize,
    /// Whether every validation is followed by a checkpoint, for the best of them are kept.
    pub keeps_many: bool,
    /// Whether step reports name their samples.
    pub report_samples: bool,
    /// Threads of the machine for all replicas.
    pub threads: usize,
    /// Who may end the run early.
    pub stop: Stop,
}

impl Plan {
    /// Whether a run that has `epochs` behind it ends: there is none left, or it gets no better. `best` is the accuracy
    /// of the best validation and the step it was after.
    pub fn is_over(&self, epochs: usize, best: Option<(f64, usize)>) -> bool {
        let best = best.map_or(0, |(_, step)| step.div_ceil(self.sampler.steps_per_epoch()));
        let stalled = self.early_stopping > 0 && epochs.saturating_sub(best) >= self.early_stopping;
        epochs >= self.epochs || stalled
    }

    /// Whether a run that stands at `position` has nothing left to do.
    pub fn is_complete(&self, position: &Position) -> bool {
        // A run that was stopped right after the last step of an epoch still has its validation to do.
        let validated = position.step_in_epoch < self.sampler.steps_per_epoch();
        self.is_over(position.epoch, position.best) || (position.global_step >= self.last_step && validated)
    }

    /// The batches of replica `rank` from `position` to the end of the run, made ready on a thread of their own.
    pub(crate) fn shards(self: &Arc<Self>, rank: usize, position: &Position) -> Result<Loader> {
        let plan = self.clone();
        let (first_epoch, first_step) = (position.epoch, position.step_in_epoch);
        let requests = (first_epoch..self.epochs).flat_map(move |epoch| {
            let plan = plan.clone();
            let start = if epoch == first_epoch { first_step } else { 0 };
            (start..plan.sampler.steps_per_epoch()).flat_map(move |step| {
                let group = plan.sampler.group(epoch, step);
                let shard = |micro| plan.request(&group, micro, epoch, rank);
                (0..group.micro_batches.len()).map(shard).collect::<Vec<_>>()
            })
        });
        Loader::new(self.train.clone(), self.augment.clone(), self.seed, requests, PREFETCH)
    }

    /// The part of a micro-batch that replica `rank` owns, and what is mixed into it.
    pub(crate) fn request(&self, group: &Group, micro: usize, epoch: usize, rank: usize) -> Request {
        let world = self.world.size();
        let mix = self.mixing.zip(group.micro_batches[micro].first()).map(|(mixing, &sample)| {
            // By the first sample of all replicas, so that every one of them mixes alike.
            mixing.draw(Key { seed: self.seed, epoch, sample }, self.train.size())
        });
        Request {
            epoch,
            ids: group.shard(micro, rank, world),
            copies: group.copies(micro, rank, world),
            mixed: mix.map(|mix| Mixed {
                partners: group.partners(micro, rank, world),
                copies: group.partner_copies(micro, rank, world),
                mix,
            }),
        }
    }

    /// The validation images of replica `rank`, in batches made ready ahead, and how many batches they are.
    pub(crate) fn validation_shard(&self, rank: usize) -> Result<(Loader, usize)> {
        let world = self.world.size();
        let mut batches =
            validation_batches(self.validation.len(), world, rank, self.batch_size, self.limit_validation);
        batches.retain(|ids| !ids.is_empty());
        let total = batches.len();
        let requests = batches.into_iter().map(|ids| Request { ids, ..Request::default() });
        Ok((Loader::new(self.validation.clone(), self.plain.clone(), self.seed, requests, PREFETCH)?, total))
    }

    /// How many images a validation sees.
    pub(crate) fn validation_images(&self) -> usize {
        let limit = self.limit_validation.saturating_mul(self.world.size()).saturating_mul(self.batch_size);
        if limit == 0 { self.validation.len() } else { limit.min(self.validation.len()) }
    }

    /// Validation images on a device.
    pub(crate) fn evaluation_batch<B: HostBackend>(&self, batch: HostBatch, device: &B::Device) -> EvaluationBatch<B> {
        let [height, width] = batch.size;
        let count = batch.len();
        let labels: Vec<i32> = batch.labels.into_iter().map(|label| label as i32).collect();
        EvaluationBatch {
            images: Tensor::from_data(TensorData::new(batch.pixels, [count, 3, height, width]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
            precision: self.precision,
        }
    }
}
