//! The forward and backward passes of one optimizer step of one worker.
//!
//! Two rules keep Burn 0.21's autodiff graph from losing gradients when several threads use it (tracel-ai/burn #5573):
//!
//! 1. **Fresh leaves before every forward.** The model is forked before each micro-batch, so no leaf of the graph has
//!    been through a backward before.
//! 2. **No backward beside a forward.** All workers of the process wait for each other between a forward and a backward
//!    pass, and again before the next forward pass.

use std::collections::VecDeque;
use std::sync::Arc;

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensorOps;
use burn_train::TrainOutput;
use tracing::info_span;

use super::accumulation::Listener;
use super::collective::Collective;
use super::device::HostBackend;
use super::key::{Broken, Key, Operation};
use super::outcome::Sums;
use super::overlap::Early;
use super::probe::{Observed, Watch};
use super::replica::Replica;
use super::stage::Turn;
use super::sums::gather_across;
use super::task::Task;
use super::trainee::{Micro, MicroOutput, Pending};
use crate::error::{Error, Result};
use crate::nn::{BatchStatistics, ForwardContext, flat_gradients, parameter_names};
use crate::ops::statistics::{Combine, Direction, Part, StatisticsGroup};
use crate::ops::{Shared, primitive, tensor, with_values};

/// The sums over micro-batches on one replica, beside those of gradients.
pub(super) struct Share<B: HostBackend> {
    pub(super) sums: Vec<Sums<B>>,
    /// The batch statistics of each micro-batch with a sample, for the running averages.
    pub(super) statistics: Vec<Vec<BatchStatistics<Autodiff<B>>>>,
}

/// The sums of all passes of a step, this replica's summands of the mean gradient, and what has begun to reduce some of
/// them.
type Summed<B> = (Share<B>, Vec<Tensor<B, 1>>, Option<Arc<Early<B>>>);

/// A micro-batch between its forward and its backward pass.
struct Begun<B: HostBackend, T: Task<B>> {
    pending: Pending<B, T>,
    is_present: bool,
    synchronizes: bool,
}

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Forward and backward over all micro-batches; `weight` is that of a sample. The reduction of some gradients may
    /// have begun then.
    pub(super) fn passes(&mut self, micro_batches: usize, weight: f64) -> Result<Summed<B>> {
        let mut sum = Share { sums: Vec::new(), statistics: Vec::new() };
        let (mut early, mut begun, mut is_backward) = (None, VecDeque::new(), false);
        let sums = (micro_batches > 1).then(|| self.gradients.clone());
        let adds = !self.task.sees_gradients() && self.plan.probe.is_none();
        for turn in self.stage.turns(micro_batches) {
            match turn {
                Turn::Forward(micro_batch) => {
                    if std::mem::take(&mut is_backward) {
                        self.meet(Operation::BackwardDone, micro_batch - 1)?;
                    }
                    if micro_batch + 1 == micro_batches {
                        let key = self.key(Operation::BackwardDone);
                        early = self.overlap.as_ref().map(|overlap| overlap.listen(key, &self.collective));
                    }
                    let listener = Listener { sums: sums.clone(), adds, early: early.clone() };
                    begun.push_back(self.forward(micro_batch, weight, listener)?);
                }
                Turn::Backward(micro_batch) => {
                    if !std::mem::replace(&mut is_backward, true) {
                        self.meet(Operation::ForwardDone, micro_batch)?;
                    }
                    let begun = begun.pop_front().expect("every backward pass follows its forward pass");
                    let Share { sums, statistics } = self.backward(micro_batch, begun)?;
                    sum.sums.extend(sums);
                    sum.statistics.extend(statistics);
                }
            }
        }
        self.meet(Operation::BackwardDone, micro_batches - 1)?;
        Ok((sum, self.gradients.take(), early))
    }

    /// Rule 2: waits for all workers of this process.
    fn meet(&self, operation: Operation, micro_batch: usize) -> Result<()> {
        let key = Key { micro_batch, ..self.key(operation) };
        Ok(info_span!("wait for replicas").in_scope(|| self.stage.everyone.barrier(key))?)
    }

    /// The forward pass of this worker's part of the model. `listener` gets gradients of kernels as they become final.
    fn forward(&mut self, micro_batch: usize, weight: f64, listener: Listener<B>) -> Result<Begun<B, T>> {
        let batch = info_span!("wait for data").in_scope(|| self.batches.next());
        let (input, samples) = batch.ok_or_else(|| Error::Training("the loader ended before the run".into()))??;
        let is_present = samples > 0;
        let key = Key { micro_batch, ..self.key(Operation::BackwardDone) };
        let synchronizes = self.plan.sync_bn && self.collective.size() > 1;
        let context = if synchronizes {
            let collective = self.collective.clone();
            let (shares_tensors, early) = (self.shares_tensors(), listener.early.clone());
            let group = MicroBatchGroup { collective, key, shares_tensors, early };
            ForwardContext::synchronized(Arc::new(group), is_present)
        } else {
            ForwardContext::local()
        };
        let micro = Micro {
            input,
            samples,
            weight: if is_present { weight } else { 0.0 },
            context: context.in_precision(self.plan.precision).with_listener(Arc::new(listener)),
            watch: self.watch(micro_batch),
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

    /// The probe, if there is one.
    pub(super) fn watch(&self, micro_batch: usize) -> Option<Watch> {
        let (step, replica) = (self.position.global_step + 1, self.collective.rank());
        self.plan.probe.as_ref().map(|probe| probe.at(step, micro_batch, replica))
    }

    /// Waits until all replicas of the stage can begin their backward pass. In Burn's graph the end of a backward pass waits
    /// for all others of the process that have begun: one that still waited for the statistics of a replica, which waits for
    /// a gradient, would hold up the stage that sends it.
    fn begin_together(&self, key: Key) -> Result<()> {
        if self.collective.size() > 1 && !self.stage.is_alone() {
            let meet = || self.collective.all_gather(key, Vec::new(), |all| all);
            info_span!("wait for replicas").in_scope(meet)?;
        }
        Ok(())
    }

    /// The backward pass that belongs to a forward pass.
    fn backward(&mut self, micro_batch: usize, begun: Begun<B, T>) -> Result<Share<B>> {
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
        if let Some(watch) = self.watch(micro_batch) {
            watch.tensors(Observed::Gradient, &self.task.units(), parameter_names(&model), &gradients);
        }
        // Synchronised statistics are the same on all replicas, even on one without a sample.
        let seen = is_present || synchronizes;
        let statistics = if seen { vec![statistics] } else { Vec::new() };
        self.gradients.add(gradients);
        Ok(Share { sums: sums.filter(|_| is_present).into_iter().collect(), statistics })
    }
}

/// The replicas that share the batch-norm statistics of one micro-batch.
#[derive(Debug)]
struct MicroBatchGroup<B: HostBackend> {
    collective: Arc<Collective>,
    /// Names the step and the micro-batch; its operation does not matter.
    key: Key,
    shares_tensors: bool,
    /// What reduces gradients during the backward pass.
    early: Option<Arc<Early<B>>>,
}

impl<B: HostBackend> MicroBatchGroup<B> {
    /// Runs the collective of one layer and direction; unwinds if the group is broken.
    fn all<T>(&self, layer: usize, direction: Direction, run: impl FnOnce(Key) -> std::result::Result<T, Broken>) -> T {
        let key = Key { operation: Operation::Statistics { layer, direction }, ..self.key };
        info_span!("statistics").in_scope(|| run(key)).unwrap_or_else(|verdict| verdict.unwind())
    }

    /// The tensors of all replicas, from device to device. Such calls are matched by their order, and each waits for the one
    /// before. That of statistics is the same on all replicas, which wait for each other; a bucket that has left before is
    /// summed before on all of them.
    fn across(&self, layer: usize, direction: Direction, own: Tensor<B, 1>) -> Tensor<B, 1> {
        self.all(layer, direction, |key| {
            self.early.iter().for_each(|early| early.settle());
            let counts = vec![own.dims()[0]; self.collective.size()];
            gather_across(&self.collective, key, own, &counts)
        })
    }
}

impl<B: HostBackend> StatisticsGroup for MicroBatchGroup<B> {
    fn gather(&self, layer: usize, direction: Direction, values: Vec<f64>, combine: Combine) -> Arc<Vec<Vec<f64>>> {
        if self.collective.devices().is_none() {
            return self.all(layer, direction, |key| self.collective.all_gather(key, values, combine));
        }
        // An engine for devices that takes the host's memory carries the bits as f32, which it does not look at.
        let own = B::from_host(bytemuck::cast_slice(&values), &B::Device::default());
        let all = tensor(B::share(primitive(self.across(layer, direction, tensor(own)))));
        let all: Vec<f64> = with_values::<B, _>(all, bytemuck::pod_collect_to_vec);
        Arc::new(combine(all.chunks(values.len()).map(<[f64]>::to_vec).collect()))
    }

    fn exchange(&self, layer: usize, direction: Direction, own: Part) -> Option<Part> {
        self.collective.devices()?;
        let own = Arc::unwrap_or_clone(own.downcast::<Shared<B>>().expect("statistics are tensors of this backend"));
        let device = B::Below::float_device(&own);
        let all = self.across(layer, direction, tensor(B::adopt(own, &device)));
        Some(Arc::new(B::share(primitive(all))))
    }

    fn meet(
        &self,
        layer: usize,
        direction: Direction,
        part: Part,
        combine: &dyn Fn(Vec<Part>) -> Part,
    ) -> Option<Part> {
        self.shares_tensors.then(|| self.all(layer, direction, |key| self.collective.meet(key, part, combine)))
    }
}
