//! One optimizer step of one worker: the passes, the reduction, the exchange of losses, the update.

use burn::tensor::Tensor;
use kiln_ops::{primitive, settle, tensor};
use kiln_system::Result;
use tracing::info_span;

use super::message::StepMessage;
use super::outcome::{Outcome, Read, Statistics, not_finite};
use super::passes::Passes;
use super::probe::Observed;
use super::remedy::raise_device_panic;
use super::replica::Flow;
use super::sharding::lengths;
use super::tensors::parts;
use super::work::PAUSE;
use super::{Counts, Group, HostBackend, Key, Operation, ReducePrecision, Replica, Share, StepReport, Task};
use crate::nn::{TensorSet, flat, gradients_of, parameter_names, update_running_statistics, with_flat};
use crate::optim::{clip_factor, clip_factor_there, global_norm, norms};

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Forward and backward over the group's micro-batches, one reduction, one update. Returns what follows, and the
    /// report of this step or, if outcomes are read late, of the last one.
    pub(super) fn step(&mut self, group: &Group, report: StepReport) -> Result<(Option<StepReport>, Flow)> {
        let scale = if self.is_scaled() { self.position.loss_scale.scale } else { 1.0 };
        let Passes { sums, statistics, early } = self.passes(group, scale / group.samples() as f64)?;
        let gradients = self.packed_gradients();
        let gradients = self.reduction.sum(self.key(Operation::Counts), gradients, early)?;
        let statistics = self.mean_statistics(statistics, group)?;
        let norms = info_span!("gradient norm").in_scope(|| norms(&gradients));
        let outcome = Outcome::new(report, sums, norms.clone(), scale, self.reading.is_late);
        let (report, flow) = self.judge(outcome)?;
        if report.as_ref().is_some_and(is_overflow) {
            return Ok((report, flow));
        }
        let gradients = self.clipped(gradients, norms, report.as_ref(), scale);
        self.commit(gradients, statistics)?;
        self.finish();
        Ok((report, flow))
    }

    /// The gradients of all micro-batches, as the optimizer takes them.
    pub(super) fn packed_gradients(&self) -> Vec<Tensor<B, 1>> {
        let gradients = self.gradients.take();
        if let Some(arenas) = &self.arenas { arenas.pack(gradients) } else { gradients }
    }

    /// Exchanges the outcome, or that of the last step if outcomes are read late. An error unless it is finite, or an
    /// overflow in f16.
    pub(super) fn judge(&mut self, outcome: Outcome) -> Result<(Option<StepReport>, Flow)> {
        let outcome = self.reading.next(outcome);
        let (report, flow) = self.exchange(outcome, self.key(Operation::Counts))?;
        // The commit: no state has changed yet, and from here on no step of an elastic run waits for others.
        self.generation.confirm()?;
        // In f16 that is an overflow, and on all replicas at once, since all have the same reduced gradient.
        if let Some(report) = report.as_ref().filter(|report| is_overflow(report))
            && !(self.is_scaled() && self.position.loss_scale.overflow())
        {
            return Err(not_finite("the gradient", None, report.step));
        }
        Ok((report, flow))
    }

    /// Updates running statistics and weights.
    pub(super) fn commit(&mut self, gradients: Vec<Tensor<B, 1>>, statistics: Statistics<B>) -> Result<()> {
        for of_micro_batch in statistics {
            let _phase = info_span!("running statistics").entered();
            self.set_model(update_running_statistics(self.model(), of_micro_batch));
        }
        self.update(gradients)
    }

    /// What follows the update.
    pub(super) fn finish(&mut self) {
        self.observe();
        if self.is_scaled() {
            self.position.loss_scale.good();
        }
        settle::<B>(&self.device);
    }

    /// Whether the loss is scaled, as in f16.
    fn is_scaled(&self) -> bool {
        self.plan.precision.needs_loss_scale()
    }

    /// Sums losses and counts over all replicas, if there is an outcome, and agrees on whether to continue. A loss that
    /// is not finite ends the run here; in f16 it may be an overflow, which the gradient shows too.
    fn exchange(&mut self, outcome: Option<Outcome>, key: Key) -> Result<(Option<StepReport>, Flow)> {
        let work = self.work.take().unwrap_or_default();
        let (own, report) = outcome.map(Outcome::read).unzip();
        raise_device_panic(&self.device);
        let Read { counts, norms, scale } = own.unwrap_or_default();
        // The replicas of a stage have the same gradient, unless each has a part of it.
        let tells = self.reduction.own.is_some() || self.collective.rank() == 0;
        let message = StepMessage {
            counts,
            work,
            stop: self.plan.stop.reason(),
            is_ending: self.generation.is_ending(),
            saves: self.plan.stop.wants_save(),
            measures: B::is_processor() || self.measured.elapsed() >= PAUSE,
            norms: if tells { norms } else { Vec::new() },
        };
        let gather = || self.stage.everyone.all_gather(key, message.encode(self.tensors), |all| all);
        let all = info_span!("exchange of losses").in_scope(gather)?;
        let all: Vec<StepMessage> = all.iter().map(|values| StepMessage::decode(values)).collect();
        self.measures = all[0].measures;
        let mut total = Counts::default();
        for (worker, StepMessage { counts, .. }) in all.iter().enumerate() {
            if !counts.loss.is_finite() && !self.is_scaled() {
                let (replica, step) = (worker % self.plan.world.size, report.map_or(0, |report| report.step));
                return Err(not_finite("the loss", Some(replica), step));
            }
            total += *counts;
        }
        // In the order of the model's tensors, as the workers are.
        let norms: Vec<f32> = all.iter().flat_map(|message| &message.norms).copied().collect();
        let gradient_norm = global_norm(&norms) / scale;
        let is_measured = all.len() > 1 && all.iter().all(|message| message.work.seconds > 0.0);
        let work = if is_measured { all.iter().map(|message| message.work).collect() } else { Vec::new() };
        let report = report.map(|report| StepReport { gradient_norm, counts: total, work, ..report });
        // If one process was asked to stop, all do.
        if let Some(reason) = all.iter().find_map(|message| message.stop.clone()) {
            self.plan.stop.request(reason);
            return Ok((report, Flow::Stop));
        }
        let flow = if all.iter().any(|message| message.is_ending) {
            Flow::Part
        } else if all.iter().any(|message| message.saves) {
            Flow::Save
        } else {
            Flow::Continue
        };
        Ok((report, flow))
    }

    /// Reads the outcome of the last step, if that has not been done.
    pub(super) fn settle_outcome(&mut self) -> Result<()> {
        let Some(outcome) = self.reading.unread.take() else { return Ok(()) };
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

    /// The gradients of the unscaled loss, clipped by their norm and by value. A device whose outcome is read late has
    /// the norm itself.
    pub(super) fn clipped(
        &self,
        gradients: Vec<Tensor<B, 1>>,
        norms: Vec<Tensor<B, 1>>,
        report: Option<&StepReport>,
        scale: f64,
    ) -> Vec<Tensor<B, 1>> {
        let _phase = info_span!("optimizer").entered();
        let (limit, most) = (self.plan.optim.clip_grad_norm, self.plan.optim.clip_grad_value);
        let there = norms.into_iter().next().filter(|_| self.reading.is_late && limit > 0.0);
        let there = there.map(|norm| clip_factor_there(norm, limit));
        let here = if self.reading.is_late {
            1.0
        } else {
            clip_factor(report.map_or(0.0, |report| report.gradient_norm), limit) / scale
        };
        let clip = |mut gradient: Tensor<B, 1>| {
            if let Some(factor) = &there {
                gradient = gradient * factor.clone();
            }
            if here != 1.0 {
                gradient = tensor(B::scaled(primitive(gradient), here));
            }
            if most > 0.0 { tensor(B::clamped(primitive(gradient), most)) } else { gradient }
        };
        gradients.into_iter().map(clip).collect()
    }

    /// The statistics by which all replicas update their running averages, if they keep those of all: the means over
    /// the replicas with a sample. Averages are linear, so this is the mean of each replica's own averages. Since all
    /// have it in every step, a checkpoint needs no others.
    pub(super) fn mean_statistics(&self, mut of_micro_batches: Statistics<B>, group: &Group) -> Result<Statistics<B>> {
        if !self.plan.averages_statistics() {
            return Ok(of_micro_batches);
        }
        let _phase = info_span!("running statistics").entered();
        let collective = self.collective.as_ref();
        for (micro_batch, layers) in of_micro_batches.iter_mut().enumerate() {
            let shares = group.shares(micro_batch, collective.size());
            let present = shares.iter().filter(|share| **share > 0).count();
            let weight = if shares[collective.rank()] > 0 { 1.0 / present as f64 } else { 0.0 };
            let own = layers.iter().flat_map(|layer| [&layer.mean, &layer.variance]);
            let own: Vec<_> = own.map(|values| values.clone().inner() * weight).collect();
            let lengths = lengths(&own);
            // A stage may have no batch-norm.
            if own.is_empty() {
                continue;
            }
            let key = Key { micro_batch, ..self.key(Operation::RunningStatistics) };
            let sum = Share::new(collective, own)?.all_reduce(collective, key, ReducePrecision::F32)?;
            let places = layers.iter_mut().flat_map(|layer| [&mut layer.mean, &mut layer.variance]);
            places.zip(parts(sum, &lengths)).for_each(|(place, mean)| *place = Tensor::from_inner(mean));
        }
        Ok(of_micro_batches)
    }

    /// One step of the learner's optimizer, and the weights that other replicas have updated from them.
    fn update(&mut self, mut gradients: Vec<Tensor<B, 1>>) -> Result<()> {
        let phase = info_span!("optimizer").entered();
        if let Some(arenas) = &self.arenas {
            self.rule.lock().prepare(gradients.clone());
            gradients = arenas.unpack(gradients);
        }
        let first = self.reduction.own.as_ref().map_or(0, |own| own.start);
        self.learner.optimizer_step(gradients_of(&self.learner.model(), first, gradients));
        drop(phase);
        if self.reduction.own.is_some() {
            let _phase = info_span!("all-gather").entered();
            let model = self.model();
            let weights = self.reduction.gather(self.key(Operation::Counts), flat(&model, TensorSet::Trained))?;
            self.set_model(with_flat(model, TensorSet::Trained, weights));
        }
        Ok(())
    }

    /// Shows the new weights to the probe and to the average.
    fn observe(&mut self) {
        if let Some(probe) = self.probe(0).filter(|_| self.collective.rank() == 0) {
            let (model, units) = (self.model(), self.task.units());
            probe.tensors(Observed::Weight, &units, parameter_names(&model), &flat(&model, TensorSet::Trained));
        }
        if let Some(average) = &mut self.average {
            average.update(self.position.global_step, || flat(&self.learner.model(), TensorSet::All));
        }
    }
}

fn is_overflow(report: &StepReport) -> bool {
    !(report.gradient_norm.is_finite() && report.counts.loss.is_finite())
}
