//! The forward and backward passes of one optimizer step of one worker.
//!
//! Two rules keep Burn 0.21's autodiff graph from losing gradients when several threads use it (tracel-ai/burn #5573):
//!
//! 1. **Fresh leaves before every forward.** The model is forked before each micro-batch, so no leaf of the graph has
//!    been through a backward before.
//! 2. **No backward during a forward.** All workers of the process wait for each other between a forward and a backward
//!    pass, and again before the next forward pass.

use std::collections::VecDeque;
use std::sync::Arc;

use burn::backend::Autodiff;
use burn_train::TrainOutput;
use kiln_system::{Error, Result};
use tracing::info_span;

use super::accumulation::Listener;
use super::device::HostBackend;
use super::key::{Key, Operation};
use super::micro_batch_group::MicroBatchGroup;
use super::outcome::Sums;
use super::overlap::Early;
use super::probe::{Observed, ProbePoint};
use super::replica::Replica;
use super::sampler::Group;
use super::stage::Turn;
use super::task::Task;
use super::task_model::{Micro, MicroOutput, Pending};
use crate::nn::{BatchStatistics, ForwardContext, flat_gradients, parameter_names};

/// What the passes of a step have computed on one replica, in addition to the gradients.
pub(super) struct Passes<B: HostBackend> {
    pub(super) sums: Vec<Sums<B>>,
    /// The batch statistics of each micro-batch with a sample, for the running averages.
    pub(super) statistics: Vec<Vec<BatchStatistics<Autodiff<B>>>>,
    /// What has begun to reduce some of the gradients.
    pub(super) early: Option<Arc<Early<B>>>,
}

/// A micro-batch between its forward and its backward pass.
struct Begun<B: HostBackend, T: Task<B>> {
    pending: Pending<B, T>,
    is_present: bool,
    synchronizes: bool,
}

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Forward and backward over all micro-batches; `weight` is that of a sample.
    pub(super) fn passes(&mut self, group: &Group, weight: f64) -> Result<Passes<B>> {
        let micro_batches = group.micro_batches();
        let mut passes = Passes { sums: Vec::new(), statistics: Vec::new(), early: None };
        let (mut begun, mut is_backward) = (VecDeque::new(), false);
        let sums = (micro_batches > 1).then(|| self.gradients.clone());
        let adds = !self.task.sees_gradients() && self.plan.probe.is_none();
        for turn in self.stage.turns(micro_batches) {
            match turn {
                Turn::Forward(micro_batch) => {
                    if std::mem::take(&mut is_backward) {
                        self.meet(Operation::BackwardDone, micro_batch - 1)?;
                    }
                    if micro_batch + 1 == micro_batches {
                        passes.early = self.reduction.listen(self.key(Operation::BackwardDone));
                    }
                    let listener = Listener { sums: sums.clone(), adds, early: passes.early.clone() };
                    begun.push_back(self.forward(group, micro_batch, weight, listener)?);
                }
                Turn::Backward(micro_batch) => {
                    if !std::mem::replace(&mut is_backward, true) {
                        self.meet(Operation::ForwardDone, micro_batch)?;
                    }
                    let begun = begun.pop_front().expect("every backward pass follows its forward pass");
                    self.backward(micro_batch, begun, &mut passes)?;
                }
            }
        }
        self.meet(Operation::BackwardDone, micro_batches - 1)?;
        Ok(passes)
    }

    /// Rule 2: waits for all workers of this process.
    fn meet(&self, operation: Operation, micro_batch: usize) -> Result<()> {
        let key = Key { micro_batch, ..self.key(operation) };
        Ok(info_span!("wait for replicas").in_scope(|| self.stage.everyone.barrier(key))?)
    }

    /// The forward pass of this worker's part of the model. `listener` gets gradients of kernels as they become final.
    fn forward(
        &mut self,
        group: &Group,
        micro_batch: usize,
        weight: f64,
        listener: Listener<B>,
    ) -> Result<Begun<B, T>> {
        let batch = info_span!("wait for data").in_scope(|| self.batches.next());
        let (input, samples) = batch.ok_or_else(|| Error::Training("the loader ended before the run".into()))??;
        let is_present = samples > 0;
        let key = Key { micro_batch, ..self.key(Operation::BackwardDone) };
        let synchronizes = self.plan.sync_bn && self.collective.size() > 1;
        let context = if synchronizes {
            let collective = self.collective.clone();
            let (shares_tensors, early) = (self.reduction.shares_tensors, listener.early.clone());
            let (size, replica) = (collective.size(), collective.rank());
            let agreed = self.agreed.clone();
            let replicas = MicroBatchGroup { collective, key, shares_tensors, early, agreed };
            ForwardContext::synchronized(Arc::new(replicas), group.shares(micro_batch, size).into(), replica)
        } else {
            ForwardContext::local()
        };
        let micro = Micro {
            input,
            samples,
            weight: if is_present { weight } else { 0.0 },
            context: context.in_precision(self.plan.precision).with_listener(Arc::new(listener)),
            probe: self.probe(micro_batch),
        };
        let part = self.stage.part(key)?;
        // Rule 1: fresh leaves before every forward.
        self.learner.fork(&self.device);
        let pending = self.learner.model().forward(micro, part);
        if let Some(activations) = pending.activations() {
            self.stage.pass_on(key, activations)?;
        }
        Ok(Begun { pending, is_present, synchronizes })
    }

    pub(super) fn probe(&self, micro_batch: usize) -> Option<ProbePoint> {
        let (step, replica) = (self.position.global_step + 1, self.collective.rank());
        self.plan.probe.as_ref().map(|probe| probe.at(step, micro_batch, replica))
    }

    /// Waits until all replicas of the stage can begin their backward pass. In Burn's graph the end of a backward pass
    /// waits for all others of the process that have begun: one that still waited for the statistics of a replica,
    /// which waits for a gradient, would hold up the stage that sends it.
    fn begin_together(&self, key: Key) -> Result<()> {
        if self.collective.size() > 1 && !self.stage.is_alone() {
            let meet = || self.collective.all_gather(key, Vec::new(), |all| all);
            info_span!("wait for replicas").in_scope(meet)?;
        }
        Ok(())
    }

    /// The backward pass that belongs to a forward pass.
    fn backward(&mut self, micro_batch: usize, begun: Begun<B, T>, passes: &mut Passes<B>) -> Result<()> {
        let Begun { pending, is_present, synchronizes } = begun;
        let key = Key { micro_batch, ..self.key(Operation::BackwardDone) };
        if !self.stage.is_whole() {
            self.stage.gradient(key)?.into_iter().for_each(|gradient| pending.set_gradient(gradient));
            self.begin_together(key)?;
        }
        let TrainOutput { grads, item } = self.learner.train_step(pending);
        let MicroOutput { sums, statistics, gradient, .. } = item;
        if let Some(gradient) = gradient {
            self.stage.pass_back(key, gradient)?;
        }
        let model = self.model();
        let gradients = flat_gradients(&model, grads).map_err(|tensor| {
            let name = parameter_names(&model).swap_remove(tensor);
            Error::Training(format!("no gradient for '{name}' on replica {}: {key}", self.collective.rank()))
        })?;
        if let Some(probe) = self.probe(micro_batch) {
            probe.tensors(Observed::Gradient, &self.task.units(), parameter_names(&model), &gradients);
        }
        self.gradients.add(gradients);
        passes.sums.extend(sums.filter(|_| is_present));
        // Synchronised statistics are the same on all replicas, even on one without a sample; their means will be.
        if is_present || synchronizes || self.plan.averages_statistics() {
            passes.statistics.push(statistics);
        }
        Ok(())
    }
}
