//! The forward and backward passes of one optimizer step of one worker.
//!
//! Two rules keep Burn 0.21's autodiff graph from losing gradients when several threads use it (tracel-ai/burn #5573):
//!
//! 1. **Fresh leaves before every forward.** The model is forked before each micro-batch, so no leaf of the graph has
//!    been through a backward before.
//! 2. **No backward during a forward.** All workers of the process wait for each other between a forward and a backward
//!    pass, and again before the next forward pass. Where units are computed again, that is before and after each of
//!    them; workers with fewer units or micro-batches to go wait as often as the others.

use std::collections::VecDeque;
use std::sync::Arc;

use burn::optim::GradientsAccumulator;
use burn_train::TrainOutput;
use kiln_system::{Error, Result};
use tracing::info_span;

use super::accumulation::{Listener, PreparedKernels};
use super::micro_batch_group::MicroBatchGroup;
use super::outcome::{Statistics, Sums};
use super::probe::{Observed, ProbePoint};
use super::recomputation::{Segment, Segments};
use super::stage::Turn;
use super::{Collective, Early, Group, HostBackend, Key, Micro, Operation, Replica, Task, Wait, waiting};
use crate::nn::{ForwardContext, flat_gradients, parameter_names};

/// What the passes of a step have computed on one replica, in addition to the gradients.
pub(super) struct Passes<B: HostBackend> {
    pub(super) sums: Vec<Sums<B>>,
    /// For the running averages.
    pub(super) statistics: Statistics<B>,
    /// What has begun to reduce some of the gradients.
    pub(super) early: Option<Arc<Early<B>>>,
}

/// A micro-batch between its forward and its backward pass.
struct Begun<B: HostBackend, T: Task<B>> {
    segments: Segments<B, T>,
    is_present: bool,
    synchronizes: bool,
}

/// Rule 2.
struct Fence {
    everyone: Arc<Collective>,
    /// Of the next meeting; its micro-batch counts them.
    key: Key,
    is_backward: bool,
}

impl Fence {
    /// Waits for all workers of this process, if the last pass was of the other direction.
    fn pass(&mut self, is_backward: bool) -> Result<()> {
        if std::mem::replace(&mut self.is_backward, is_backward) == is_backward {
            return Ok(());
        }
        self.key.operation = if is_backward { Operation::ForwardDone } else { Operation::BackwardDone };
        info_span!("wait for replicas").in_scope(|| self.everyone.barrier(self.key))?;
        self.key.micro_batch += 1;
        Ok(())
    }

    /// Takes part in the meetings of `units` units that others compute again.
    fn let_pass(&mut self, units: usize) -> Result<()> {
        (0..units).try_for_each(|_| [false, true].into_iter().try_for_each(|is_backward| self.pass(is_backward)))
    }
}

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Forward and backward over all micro-batches; `weight` is that of a sample.
    pub(super) fn passes(&mut self, group: &Group, weight: f64) -> Result<Passes<B>> {
        let micro_batches = group.micro_batches();
        let mut passes = Passes { sums: Vec::new(), statistics: Vec::new(), early: None };
        let mut begun = VecDeque::new();
        let (key, everyone) = (self.key(Operation::BackwardDone), self.stage.everyone.clone());
        let mut fence = Fence { everyone, key, is_backward: false };
        let longest = if self.plan.grad_checkpointing { self.stage.longest } else { 0 };
        let sums = (micro_batches > 1).then(|| self.gradients.clone());
        let kernels = Arc::new(PreparedKernels::of(&self.model(), self.plan.precision));
        let adds = !self.task.sees_gradients() && self.plan.probe.is_none();
        for turn in self.stage.turns(micro_batches) {
            match turn {
                Turn::Forward(micro_batch) => {
                    fence.pass(false)?;
                    if micro_batch + 1 == micro_batches {
                        passes.early = self.reduction.listen(self.key(Operation::BackwardDone));
                    }
                    let listener =
                        Listener { sums: sums.clone(), adds, early: passes.early.clone(), kernels: kernels.clone() };
                    begun.push_back(self.forward(group, micro_batch, weight, listener)?);
                }
                Turn::Backward(micro_batch) => {
                    let [before, after] = self.stage.idle().map(|turns| turns * longest);
                    if micro_batch == 0 {
                        fence.let_pass(before)?;
                    }
                    let begun = begun.pop_front().expect("every backward pass follows its forward pass");
                    let done = self.backward(micro_batch, begun, &mut passes, &mut fence)?;
                    fence.let_pass(longest.saturating_sub(done))?;
                    if micro_batch + 1 == micro_batches {
                        fence.let_pass(after)?;
                    }
                }
            }
        }
        fence.pass(false)?;
        Ok(passes)
    }

    /// The forward pass of this worker's part of the model. `listener` gets gradients of kernels as they become final.
    fn forward(
        &mut self,
        group: &Group,
        micro_batch: usize,
        weight: f64,
        listener: Listener<B>,
    ) -> Result<Begun<B, T>> {
        let (input, samples) = self.next.take().map_or_else(|| self.next_batch(), Ok)?;
        let is_present = samples > 0;
        let key = Key { micro_batch, ..self.key(Operation::BackwardDone) };
        let synchronizes = self.plan.sync_bn && self.collective.size() > 1;
        let context = if synchronizes {
            let collective = self.collective.clone();
            let (shares_tensors, early) = (self.reduction.shares_tensors, listener.early.clone());
            let (size, replica) = (collective.size(), collective.rank());
            let agreed = self.agreed.clone();
            let combined = self.plan.grad_checkpointing.then(Default::default);
            let replicas = MicroBatchGroup { collective, key, shares_tensors, early, agreed, combined };
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
        let (model, phase) = (self.learner.model(), info_span!("forward").entered());
        let mut segments = if self.plan.grad_checkpointing {
            Segments::outlined(model, micro, part, self.stage.first_trained)
        } else {
            Segments::kept(model, micro, part)
        };
        drop(phase);
        if let Some(activations) = segments.activations.take() {
            self.stage.pass_on(key, activations)?;
        }
        Ok(Begun { segments, is_present, synchronizes })
    }

    /// Waits for the next batch and the number of its samples.
    pub(super) fn next_batch(&mut self) -> Result<(T::Input, usize)> {
        let batch = info_span!("wait for data").in_scope(|| waiting(Wait::Data, || self.batches.next()));
        batch.ok_or_else(|| Error::Training("the loader ended before the run".into()))?
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

    /// The backward pass that belongs to a forward pass; returns how many units were computed one by one.
    fn backward(
        &mut self,
        micro_batch: usize,
        begun: Begun<B, T>,
        passes: &mut Passes<B>,
        fence: &mut Fence,
    ) -> Result<usize> {
        let Begun { segments: Segments { all: segments, mut statistics, .. }, is_present, synchronizes } = begun;
        let key = Key { micro_batch, ..self.key(Operation::BackwardDone) };
        let (count, model, mut phase) = (segments.len(), self.model(), None);
        let (mut gradients, mut gradient, mut seen) = (GradientsAccumulator::new(), None, None);
        for (number, segment) in segments.into_iter().rev().enumerate() {
            if self.plan.grad_checkpointing {
                fence.pass(false)?;
            }
            let (pending, is_first_pass) = match segment {
                Segment::Done(pending) => (pending, true),
                Segment::Again(micro, part) => {
                    let _phase = info_span!("recomputation").entered();
                    // Rule 1.
                    self.learner.fork(&self.device);
                    (self.learner.model().forward(micro, part), false)
                }
            };
            fence.pass(true)?;
            if number == 0 && !self.stage.is_whole() {
                gradient = self.stage.gradient(key)?;
                self.begin_together(key)?;
            }
            gradient.take().into_iter().for_each(|gradient| pending.set_gradient(gradient));
            phase.get_or_insert_with(|| info_span!("backward").entered());
            let TrainOutput { grads, item } = self.learner.train_step(pending);
            gradients.accumulate(&model, grads);
            gradient = item.gradient;
            passes.sums.extend(item.sums.filter(|_| is_present));
            statistics.extend(item.statistics.into_iter().filter(|_| is_first_pass));
            seen = item.outputs.or(seen);
        }
        drop(phase);
        let gradients = gradients.grads();
        if let Some(gradient) = gradient {
            self.stage.pass_back(key, gradient)?;
        }
        if let Some(outputs) = seen {
            self.task.after_backward(&model, &outputs, &gradients);
        }
        let gradients = flat_gradients(&model, gradients).map_err(|tensor| {
            let name = parameter_names(&model).swap_remove(tensor);
            Error::Training(format!("no gradient for '{name}' on replica {}: {key}", self.collective.rank()))
        })?;
        if let Some(probe) = self.probe(micro_batch) {
            probe.tensors(Observed::Gradient, &self.task.units(), parameter_names(&model), &gradients);
        }
        self.gradients.add(gradients);
        // Synchronised statistics are the same on all replicas, even on one without a sample; their means will be.
        if is_present || synchronizes || self.plan.averages_statistics() {
            passes.statistics.push(statistics);
        }
        Ok(count)
    }
}
