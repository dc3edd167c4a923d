//! One optimizer step of one replica: micro-batches, the exchange of losses, the reduction, the update.

use std::sync::Arc;

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn_train::TrainOutput;
use tracing::info_span;

use super::collective::Collective;
use super::counts::Counts;
use super::device::HostBackend;
use super::events::StepReport;
use super::key::{Broken, Key, Operation};
use super::outcome::{Outcome, Sums, not_finite};
use super::overlap::{Early, Overlap};
use super::replica::{Flow, Replica};
use super::sampler::Group;
use super::task::Task;
use super::trainee::Micro;
use crate::error::{Error, Result};
use crate::nn::{
    BatchStatistics, ForwardContext, Which, flat, flat_gradients, gradients_of, parameter_names,
    update_running_statistics,
};
use crate::ops::settle;
use crate::ops::statistics::{Combine, Direction, Part, StatisticsGroup};
use crate::optim::{Arenas, clip_factor, clip_factor_there, norms};
use crate::stop::Reason;

/// The sums over micro-batches on one replica.
struct Share<B: HostBackend> {
    /// This replica's summands of the mean gradient.
    gradients: Vec<Tensor<B, 1>>,
    sums: Vec<Sums<B>>,
    /// The batch statistics of each micro-batch with a sample, for the running averages.
    statistics: Vec<Vec<BatchStatistics<Autodiff<B>>>>,
}

impl<B: HostBackend> Share<B> {
    fn add(&mut self, other: Self) {
        self.sums.extend(other.sums);
        self.statistics.extend(other.statistics);
        self.gradients = if self.gradients.is_empty() {
            other.gradients
        } else {
            self.gradients.drain(..).zip(other.gradients).map(|(sum, new)| sum + new).collect()
        };
    }
}

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Forward and backward over the group's micro-batches, one reduction, one update. Returns what follows, and the
    /// report of this step or, if outcomes are read late, of the last one.
    pub(super) fn step(&mut self, group: &Group, report: StepReport) -> Result<(Option<StepReport>, Flow)> {
        let is_scaled = self.plan.precision.needs_loss_scale();
        let scale = if is_scaled { self.position.loss_scale.scale } else { 1.0 };
        let weight = scale / group.samples() as f64;
        let mut sum = Share { gradients: Vec::new(), sums: Vec::new(), statistics: Vec::new() };
        let mut early = None;
        for micro_batch in 0..group.micro_batches() {
            if micro_batch + 1 == group.micro_batches() {
                let key = self.key(Operation::BackwardDone);
                let listen = |overlap: &Overlap<B>| overlap.listen(key, &sum.gradients, &self.collective);
                early = self.overlap.as_ref().map(listen);
            }
            sum.add(self.micro_batch(micro_batch, weight, early.clone())?);
        }
        // Gradients that go to other processes are reduced one by one, while the backward pass computes others.
        let arenas = self.rule.arenas().filter(|_| self.overlap.is_none());
        let gradients = arenas.iter().fold(sum.gradients, |gradients, arenas| arenas.pack(gradients));
        let mut gradients = self.reduce(gradients, early)?;
        let norms = info_span!("gradient norm").in_scope(|| norms(&gradients));
        let is_late = !B::is_processor() && !is_scaled && self.generation.is_none();
        let outcome = Outcome::new(report, sum.sums, norms.clone(), scale, is_late);
        let outcome = if is_late { self.outcome.replace(outcome) } else { Some(outcome) };
        let (report, flow) = self.exchange(outcome, self.key(Operation::Counts))?;
        // The commit: no state has changed yet, and from here on nothing waits for others.
        self.generation.as_ref().map_or(Ok(()), |generation| generation.confirm())?;
        if let Some(report) = &report
            && !(report.gradient_norm.is_finite() && report.counts.loss.is_finite())
        {
            // In f16 that is an overflow, and the step is skipped, on all replicas at once, since all have the same
            // reduced gradient.
            if !is_scaled || !self.position.loss_scale.overflow() {
                return Err(not_finite("the gradient", None, report.step));
            }
            return Ok((Some(report.clone()), flow));
        }
        let limit = self.plan.optim.clip_grad_norm;
        let mut factor = 1.0;
        if !is_late {
            factor = clip_factor(report.as_ref().map_or(0.0, |report| report.gradient_norm), limit) / scale;
        } else if let Some(norm) = norms.into_iter().next().filter(|_| limit > 0.0) {
            let factor = clip_factor_there(norm, limit);
            gradients = gradients.into_iter().map(|gradient| gradient * factor.clone()).collect();
        }
        for statistics in sum.statistics {
            let _phase = info_span!("running statistics").entered();
            self.set_model(update_running_statistics(self.model(), statistics));
        }
        self.update(gradients, factor, arenas);
        if is_scaled {
            self.position.loss_scale.good();
        }
        Ok((report, flow))
    }

    /// This replica's share of one micro-batch. In the last one of a step, `early` gets gradients as they become final.
    fn micro_batch(&mut self, micro_batch: usize, weight: f64, early: Option<Arc<Early<B>>>) -> Result<Share<B>> {
        let batch = info_span!("wait for data").in_scope(|| self.batches.next());
        let (input, samples) = batch.ok_or_else(|| Error::Training("the loader ended before the run".into()))??;
        let is_present = samples > 0;
        let key = Key { micro_batch, ..self.key(Operation::BackwardDone) };
        let collective = self.collective.clone();
        let fence = move || {
            let key = Key { operation: Operation::ForwardDone, ..key };
            collective.barrier(key).unwrap_or_else(|verdict| verdict.unwind());
        };
        let synchronizes = self.plan.sync_bn && self.collective.size() > 1;
        let context = if synchronizes {
            let collective = self.collective.clone();
            let group = MicroBatchGroup { collective, key, shares_tensors: self.shares_tensors() };
            ForwardContext::synchronized(Arc::new(group), is_present)
        } else {
            ForwardContext::local()
        };
        let micro = Micro {
            input,
            samples,
            weight: if is_present { weight } else { 0.0 },
            context: context.in_precision(self.plan.precision).with_listener(early.map(|early| early as _)),
            fence: (self.collective.size() > 1).then(|| Box::new(fence) as _),
        };
        // Rule 1: fresh leaves before every forward.
        self.learner.fork(&self.device);
        let TrainOutput { grads, item } = self.learner.train_step(micro);
        // Rule 2: no replica touches the graph before all backwards are over; the fence is its other half.
        info_span!("wait for replicas").in_scope(|| self.collective.barrier(key))?;
        let model = self.model();
        let gradients = flat_gradients(&model, grads).map_err(|tensor| {
            let name = parameter_names(&model).swap_remove(tensor);
            Error::Training(format!("no gradient for '{name}' on replica {}: {key}", self.collective.rank()))
        })?;
        // Synchronised statistics are the same on all replicas, even on one without a sample.
        let seen = is_present || synchronizes;
        let statistics = if seen { vec![item.statistics] } else { Vec::new() };
        Ok(Share { gradients, sums: item.sums.filter(|_| is_present).into_iter().collect(), statistics })
    }

    /// Sums losses and counts over all replicas, if there is an outcome, and agrees on whether to continue. A loss that
    /// is not finite ends the run here; in f16 it may be an overflow, which the gradient shows too.
    fn exchange(&self, outcome: Option<Outcome>, key: Key) -> Result<(Option<StepReport>, Flow)> {
        let (counts, report) = outcome.map(Outcome::read).unzip();
        let counts = counts.unwrap_or_default();
        let mut values = counts.to_values().to_vec();
        values.push(self.plan.stop.reason().map_or(0, |reason| reason.number()).into());
        values.push(self.generation.as_ref().is_some_and(|generation| generation.is_ending()).into());
        let gather = || self.collective.all_gather(key, values, |all| all);
        let all = info_span!("exchange of losses").in_scope(gather)?;
        let mut total = Counts::default();
        for (replica, values) in all.iter().enumerate() {
            let counts = Counts::from_values(values);
            if !counts.loss.is_finite() && !self.plan.precision.needs_loss_scale() {
                let step = report.map_or(0, |report| report.step);
                return Err(not_finite("the loss", Some(replica), step));
            }
            total += counts;
        }
        let report = report.map(|report| StepReport { counts: total, ..report });
        let reason = all.iter().find_map(|values| Reason::of_number(values[Counts::VALUES] as u32));
        // If one process was asked to stop, all do.
        if let Some(reason) = reason {
            self.plan.stop.request(reason);
            return Ok((report, Flow::Stop));
        }
        let parts = all.iter().any(|values| values[Counts::VALUES + 1] != 0.0);
        Ok((report, if parts { Flow::Part } else { Flow::Continue }))
    }

    /// Reads the outcome of the last step, if that has not been done.
    pub(super) fn settle_outcome(&mut self) -> Result<()> {
        let Some(outcome) = self.outcome.take() else { return Ok(()) };
        // The next step has a collective of this name, too.
        let key = Key { micro_batch: 1, ..self.key(Operation::Counts) };
        if let (Some(report), _) = self.exchange(Some(outcome), key)? {
            if !report.gradient_norm.is_finite() {
                return Err(not_finite("the gradient", None, report.step));
            }
            self.account(report);
        }
        Ok(())
    }

    /// One step of the learner's optimizer with `gradients` times `factor`, which may be packed in `arenas`.
    fn update(&mut self, gradients: Vec<Tensor<B, 1>>, factor: f64, arenas: Option<Arenas>) {
        let _phase = info_span!("optimizer").entered();
        let scaled = |gradient: Tensor<B, 1>| if factor == 1.0 { gradient } else { gradient * factor };
        let limit = self.plan.optim.clip_grad_value;
        let cut = |gradient: Tensor<B, 1>| if limit > 0.0 { gradient.clamp(-limit, limit) } else { gradient };
        let mut gradients: Vec<_> = gradients.into_iter().map(scaled).map(cut).collect();
        if let Some(arenas) = arenas {
            self.rule.prepare(gradients.clone());
            gradients = arenas.unpack(gradients);
        }
        self.learner.optimizer_step(gradients_of(&self.learner.model(), gradients));
        if let Some(average) = &mut self.average {
            average.update(flat(&self.learner.model(), Which::All));
        }
        settle::<B>(&self.device);
    }
}

/// The replicas that share the batch-norm statistics of one micro-batch.
#[derive(Debug)]
struct MicroBatchGroup {
    collective: Arc<Collective>,
    /// Names the step and the micro-batch; its operation does not matter.
    key: Key,
    shares_tensors: bool,
}

impl MicroBatchGroup {
    /// Runs the collective of one layer and direction; unwinds if the group is broken.
    fn all<T>(&self, layer: usize, direction: Direction, run: impl FnOnce(Key) -> std::result::Result<T, Broken>) -> T {
        let key = Key { operation: Operation::Statistics { layer, direction }, ..self.key };
        info_span!("statistics").in_scope(|| run(key)).unwrap_or_else(|verdict| verdict.unwind())
    }
}

impl StatisticsGroup for MicroBatchGroup {
    fn gather(&self, layer: usize, direction: Direction, values: Vec<f64>, combine: Combine) -> Arc<Vec<Vec<f64>>> {
        self.all(layer, direction, |key| self.collective.all_gather(key, values, combine))
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
