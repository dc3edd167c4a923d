//! The plan of a run: what is decided before its first step and is the same for all replicas.

use std::sync::Arc;

use kiln_ops::Precision;
use kiln_system::stop::Stop;
use kiln_system::{Error, Result};

use super::config::{BnStatistics, CHECK_EVERY, Recorded};
use super::probe::Probe;
use super::sampler::{Sampler, SamplerConfig, validation_batches};
use super::{Group, HostBackend, Position, ReducePrecision, Shard, Split, Task, World};
use crate::optim::{AveragedSteps, OptimConfig, Schedule};

/// An immutable description of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub world: World,
    /// Whether batch-norm statistics are taken over all replicas.
    pub sync_bn: bool,
    /// The running statistics that are kept otherwise.
    pub bn_statistics: BnStatistics,
    /// The type in which gradients are sent.
    pub reduce_precision: ReducePrecision,
    /// The type in which convolutions and the linear layer compute.
    pub precision: Precision,
    /// Samples per replica and micro-batch.
    pub batch_size: usize,
    pub epochs: usize,
    /// Optimizer steps after which the run ends, at most those of all epochs.
    pub last_step: usize,
    pub sampler: Sampler,
    pub validation_samples: usize,
    /// Global validation batches; 0 for all.
    pub limit_validation: usize,
    pub schedule: Schedule,
    pub optim: OptimConfig,
    /// Whether each replica updates a part of the weights wherever replicas are; see `sharding.rs`.
    pub shard_optimizer: bool,
    /// Whether activations inside of units are computed again for the backward pass and not kept; see
    /// `recomputation.rs`.
    pub grad_checkpointing: bool,
    /// How steps are recorded, if they are; see `recording.rs`.
    pub recorded: Recorded,
    /// Random seed of samples and augmentation.
    pub seed: u64,
    /// Steps between checkpoints; 0 for none. The end of the run is always saved.
    pub save_every_steps: usize,
    /// Epochs between checkpoints; 0 for none. With either interval, the best validation so far is saved too.
    pub save_every_epochs: usize,
    /// The first unit of each stage but the first; if empty, the cut that minimises the work of the most expensive
    /// stage.
    pub split_points: Vec<usize>,
    /// Steps between two comparisons of the replicas; 0 for none, not even before a checkpoint.
    pub check_every: usize,
    /// If a minority of the replicas of an elastic run diverges, roll back to the last checkpoint.
    pub roll_back: bool,
    /// Epochs in a row without a better validation after which the run ends; 0 for never.
    pub early_stopping: usize,
    /// Whether every validation is followed by a checkpoint, because the best of them are kept.
    pub keeps_many: bool,
    /// Whether step reports name their samples.
    pub report_samples: bool,
    /// Sees what every unit computes; slow.
    pub probe: Option<Probe>,
    /// Threads for all replicas of this machine.
    pub threads: usize,
    pub stop: Stop,
}

impl Plan {
    /// A plan for `training` and `validation` samples in batches of `batch_size` per replica of `world`: every epoch in
    /// another order, followed by a validation and a checkpoint; SGD with momentum at a constant rate.
    ///
    /// # Errors
    /// If there is no training sample, or `batch_size` is 0.
    pub fn new(world: World, [training, validation]: [usize; 2], batch_size: usize, epochs: usize) -> Result<Self> {
        let sampler = Sampler::new(SamplerConfig {
            len: training,
            world_size: world.size,
            batch_size,
            accumulation_steps: 1,
            seed: 0,
            drop_last: false,
            shuffle: true,
            limit_micro_batches: 0,
            repeats: 1,
        })?;
        let optim = OptimConfig { weight_decay: 0.0, ..OptimConfig::default() };
        Ok(Self {
            sync_bn: true,
            bn_statistics: BnStatistics::First,
            reduce_precision: ReducePrecision::F32,
            precision: Precision::F32,
            batch_size,
            epochs,
            last_step: epochs * sampler.steps_per_epoch(),
            validation_samples: validation,
            limit_validation: 0,
            schedule: Schedule::constant(optim.learning_rate, epochs * sampler.steps_per_epoch()),
            optim,
            shard_optimizer: false,
            grad_checkpointing: false,
            recorded: Recorded::No,
            seed: 0,
            save_every_steps: 0,
            save_every_epochs: 1,
            split_points: Vec::new(),
            check_every: CHECK_EVERY,
            roll_back: false,
            early_stopping: 0,
            keeps_many: false,
            report_samples: false,
            probe: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            stop: Stop::new(),
            world,
            sampler,
        })
    }

    /// Whether each replica takes the statistics of its own batches, and all keep their mean.
    pub(super) fn averages_statistics(&self) -> bool {
        !self.sync_bn && self.bn_statistics == BnStatistics::Mean && self.world.size > 1
    }

    /// The steps that the average of the weights takes.
    pub(super) fn averaged_steps(&self) -> AveragedSteps {
        AveragedSteps {
            every: self.optim.ema_every,
            per_epoch: self.sampler.steps_per_epoch(),
            copied_until: self.optim.ema_after_warmup.then_some(self.schedule.warmup_steps),
        }
    }

    /// The plan of the replicas of `stage` that this process hosts.
    pub(super) fn of_stage(&self, stage: usize) -> Option<Self> {
        Some(Self { world: self.world.of_stage(stage)?, ..self.clone() })
    }

    /// Whether a run ends after `epochs` epochs: none is left, or early stopping applies. `best` is the score of the
    /// best validation and its step.
    pub fn is_over(&self, epochs: usize, best: Option<(f64, usize)>) -> bool {
        let best = best.map_or(0, |(_, step)| step.div_ceil(self.sampler.steps_per_epoch()));
        let stalled = self.early_stopping > 0 && epochs.saturating_sub(best) >= self.early_stopping;
        epochs >= self.epochs || stalled
    }

    /// Whether a run at `position` is complete.
    pub fn is_complete(&self, position: &Position) -> bool {
        // A run that was stopped right after the last step of an epoch still needs its validation.
        let validated = position.step_in_epoch < self.sampler.steps_per_epoch();
        self.is_over(position.epoch, position.best) || (position.global_step >= self.last_step && validated)
    }

    /// The shards of replica `rank` from `position` to the end of the run.
    pub(crate) fn shards(
        self: &Arc<Self>,
        rank: usize,
        position: &Position,
    ) -> impl Iterator<Item = Shard> + Clone + use<> {
        let plan = self.clone();
        let (first_epoch, first_step) = (position.epoch, position.step_in_epoch);
        (first_epoch..self.epochs).flat_map(move |epoch| {
            let plan = plan.clone();
            let start = if epoch == first_epoch { first_step } else { 0 };
            (start..plan.sampler.steps_per_epoch()).flat_map(move |step| {
                let group = plan.sampler.group(epoch, step);
                let shard = |micro| plan.shard(&group, micro, epoch, rank);
                (0..group.micro_batches()).map(shard).collect::<Vec<_>>()
            })
        })
    }

    /// The part of a micro-batch that replica `rank` owns, or the first sample if it owns none.
    pub fn shard(&self, group: &Group, micro: usize, epoch: usize, rank: usize) -> Shard {
        let world = self.world.size;
        let first = group.shard(micro, 0, usize::MAX);
        let own = group.shard(micro, rank, world);
        let is_own = !own.is_empty();
        // Without samples of its own, the part of replica 0 in a world so large that this is the first sample.
        let (rank, world) = if is_own { (rank, world) } else { (0, usize::MAX) };
        Shard {
            epoch,
            ids: if is_own { own } else { first.clone() },
            is_own,
            copies: group.copies(micro, rank, world),
            partners: group.partners(micro, rank, world),
            partner_copies: group.partner_copies(micro, rank, world),
            first: first[0],
            targets_only: false,
        }
    }

    /// The validation samples of replica `rank`, in batches.
    pub(crate) fn validation_shards(&self, rank: usize) -> Vec<Shard> {
        let (world, samples) = (self.world.size, self.validation_samples);
        let batches = validation_batches(samples, world, rank, self.batch_size, self.limit_validation);
        let batches = batches.into_iter().filter(|ids| !ids.is_empty());
        batches.map(|ids| Shard { first: ids[0], is_own: true, ids, ..Shard::default() }).collect()
    }

    /// Checks that `task` has as many samples as this plan.
    pub(super) fn check_samples<B: HostBackend, T: Task<B>>(&self, task: &T) -> Result<()> {
        for (split, planned) in [(Split::Training, self.sampler.len()), (Split::Validation, self.validation_samples)] {
            let there = task.dataset(split).len();
            if there != planned {
                let split = if split == Split::Training { "training" } else { "validation" };
                return Err(Error::Data(format!(
                    "the plan is for {planned} {split} samples, and the data set has {there}; make one from the other"
                )));
            }
        }
        Ok(())
    }

    /// How many samples a validation sees.
    pub(crate) fn samples_to_validate(&self) -> usize {
        let limit = self.limit_validation.saturating_mul(self.world.size).saturating_mul(self.batch_size);
        if limit == 0 { self.validation_samples } else { limit.min(self.validation_samples) }
    }
}
