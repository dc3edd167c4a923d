//! One optimizer step of one worker: the passes, the reduction, the exchange of losses, the update.

use burn::tensor::Tensor;
use tracing::info_span;

use super::counts::Counts;
use super::device::HostBackend;
use super::events::StepReport;
use super::key::{Key, Operation};
use super::outcome::{Outcome, Read, not_finite};
use super::probe::Observed;
use super::remedy::raise_device_panic;
use super::replica::{Flow, Replica};
use super::sampler::Group;
use super::sharding::{all_gather, lengths};
use super::task::Task;
use crate::error::Result;
use crate::nn::{Which, flat, gradients_of, parameter_names, update_running_statistics, with_flat};
use crate::ops::settle;
use crate::optim::{Arenas, clip_factor, clip_factor_there, global_norm, norms};
use crate::stop::Reason;

/// Where the norms of a stage begin in the message of a step: behind the counts and the two wishes to end.
const MESSAGE: usize = Counts::VALUES + 2;

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Forward and backward over the group's micro-batches, one reduction, one update. Returns what follows, and the
    /// report of this step or, if outcomes are read late, of the last one.
    pub(super) fn step(&mut self, group: &Group, report: StepReport) -> Result<(Option<StepReport>, Flow)> {
        let is_scaled = self.plan.precision.needs_loss_scale();
        let scale = if is_scaled { self.position.loss_scale.scale } else { 1.0 };
        let weight = scale / group.samples() as f64;
        let (sum, gradients, early) = self.passes(group, weight)?;
        // Gradients that go to other processes are reduced one by one, while the backward pass computes others.
        let arenas = self.rule.arenas().filter(|_| self.overlap.is_none() && self.own.is_none());
        let gradients = arenas.iter().fold(gradients, |gradients, arenas| arenas.pack(gradients));
        let mut gradients = self.reduce(gradients, early)?;
        let norms = info_span!("gradient norm").in_scope(|| norms(&gradients));
        let is_late = !B::is_processor() && !is_scaled && self.generation.is_none() && self.has_all();
        let outcome = Outcome::new(report, sum.sums, norms.clone(), scale, is_late);
        let outcome = if is_late { self.outcome.replace(outcome) } else { Some(outcome) };
        let (report, flow) = self.exchange(outcome, self.key(Operation::Counts))?;
        // The commit: no state has changed yet, and from here on no step of an elastic run waits for others.
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
        self.update(gradients, factor, arenas)?;
        if is_scaled {
            self.position.loss_scale.good();
        }
        Ok((report, flow))
    }

    /// Sums losses and counts over all replicas, if there is an outcome, and agrees on whether to continue. A loss that
    /// is not finite ends the run here; in f16 it may be an overflow, which the gradient shows too.
    fn exchange(&self, outcome: Option<Outcome>, key: Key) -> Result<(Option<StepReport>, Flow)> {
        let (own, report) = outcome.map(Outcome::read).unzip();
        raise_device_panic(&self.device);
        let Read { counts, norms, scale } = own.unwrap_or_default();
        let mut values = counts.to_values().to_vec();
        values.push(self.plan.stop.reason().map_or(0, |reason| reason.number()).into());
        values.push(self.generation.as_ref().is_some_and(|generation| generation.is_ending()).into());
        if !self.has_all() {
            // The replicas of a stage have the same gradient, unless each has a part of it.
            let told = if self.own.is_some() || self.collective.rank() == 0 { &norms[..] } else { &[] };
            values.push(told.len() as f64);
            values.extend(told.iter().map(|norm| f64::from(*norm)));
            values.resize(MESSAGE + 1 + self.tensors, 0.0);
        }
        let gather = || self.stage.everyone.all_gather(key, values, |all| all);
        let all = info_span!("exchange of losses").in_scope(gather)?;
        let mut total = Counts::default();
        for (worker, values) in all.iter().enumerate() {
            let counts = Counts::from_values(values);
            if !counts.loss.is_finite() && !self.plan.precision.needs_loss_scale() {
                let (replica, step) = (worker % self.plan.world.size, report.map_or(0, |report| report.step));
                return Err(not_finite("the loss", Some(replica), step));
            }
            total += counts;
        }
        let of_worker = |values: &Vec<f64>| {
            let (count, norms) = (values[MESSAGE] as usize, &values[MESSAGE + 1..]);
            norms[..count].iter().map(|norm| *norm as f32).collect::<Vec<f32>>()
        };
        // In the order of the model's tensors, as the workers are.
        let norms = if self.has_all() { norms } else { all.iter().flat_map(of_worker).collect() };
        let gradient_norm = global_norm(&norms) / scale;
        let report = report.map(|report| StepReport { gradient_norm, ..report });
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

    /// Whether this worker has the whole gradient.
    pub(super) fn has_all(&self) -> bool {
        self.stage.is_whole() && self.own.is_none()
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
    fn update(&mut self, gradients: Vec<Tensor<B, 1>>, factor: f64, arenas: Option<Arenas>) -> Result<()> {
        let phase = info_span!("optimizer").entered();
        let scaled = |gradient: Tensor<B, 1>| if factor == 1.0 { gradient } else { gradient * factor };
        let limit = self.plan.optim.clip_grad_value;
        let cut = |gradient: Tensor<B, 1>| if limit > 0.0 { gradient.clamp(-limit, limit) } else { gradient };
        let mut gradients: Vec<_> = gradients.into_iter().map(scaled).map(cut).collect();
        if let Some(arenas) = arenas {
            self.rule.prepare(gradients.clone());
            gradients = arenas.unpack(gradients);
        }
        let first = self.own.as_ref().map_or(0, |own| own.start);
        self.learner.optimizer_step(gradients_of(&self.learner.model(), first, gradients));
        drop(phase);
        self.gather_weights()?;
        if let Some(watch) = self.watch(0).filter(|_| self.collective.rank() == 0) {
            let (model, units) = (self.model(), self.task.units());
            watch.tensors(Observed::Weight, &units, parameter_names(&model), &flat(&model, Which::Trained));
        }
        if let Some(average) = &mut self.average {
            average.update(flat(&self.learner.model(), Which::All));
        }
        settle::<B>(&self.device);
        Ok(())
    }

    /// Takes the weights that other replicas have updated from them, where the update is in parts.
    fn gather_weights(&mut self) -> Result<()> {
        let Some(own) = self.own.clone() else { return Ok(()) };
        let _phase = info_span!("all-gather").entered();
        let (model, key) = (self.model(), self.key(Operation::Weights));
        let weights = flat(&model, Which::Trained);
        let (lengths, shares_tensors) = (lengths(&weights), self.shares_tensors());
        let own = weights[own].to_vec();
        let all = all_gather(&self.collective, key, own, &lengths, &self.device, shares_tensors)?;
        self.set_model(with_flat(model, Which::Trained, all));
        Ok(())
    }
}
