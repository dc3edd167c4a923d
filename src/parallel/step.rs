//! One optimizer step of one replica: micro-batches, the exchange of losses, the reduction, the update.

use std::sync::Arc;

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn_train::TrainOutput;
use tracing::info_span;

use super::collective::{Key, Operation};
use super::counts::Counts;
use super::device::HostBackend;
use super::overlap::{Early, Overlap};
use super::replica::{Replica, StepResult};
use super::sampler::Group;
use super::synchronization::Meeting;
use super::task::Task;
use super::trainee::Micro;
use crate::error::{Error, Result};
use crate::nn::{
    BatchStatistics, ForwardContext, Which, flat, flat_gradients, gradients_of, parameter_names,
    update_running_statistics,
};
use crate::ops::settle;
use crate::optim::{clip_factor, global_norm};
use crate::stop::Reason;

/// What replicas tell each other in every step.
struct Exchange {
    counts: Counts,
    stop: bool,
    part: bool,
}

/// What micro-batches add up to on one replica.
struct Share<B: HostBackend> {
    /// Summands of the mean gradient.
    gradients: Vec<Tensor<B, 1>>,
    counts: Counts,
    /// For the running averages, of each micro-batch with a sample.
    statistics: Vec<Vec<BatchStatistics<Autodiff<B>>>>,
}

impl<B: HostBackend> Default for Share<B> {
    fn default() -> Self {
        Self { gradients: Vec::new(), counts: Counts::default(), statistics: Vec::new() }
    }
}

impl<B: HostBackend> Share<B> {
    fn add(&mut self, other: Self) {
        self.counts += other.counts;
        self.statistics.extend(other.statistics);
        self.gradients = if self.gradients.is_empty() {
            other.gradients
        } else {
            self.gradients.drain(..).zip(other.gradients).map(|(sum, new)| sum + new).collect()
        };
    }
}

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Forward and backward over the group's micro-batches, one reduction, one update.
    pub(super) fn step(&mut self, group: &Group) -> Result<StepResult> {
        let scale = self.loss_scale();
        let weight = scale / group.samples() as f64;
        let mut sum = Share::default();
        let mut early = None;
        for micro_batch in 0..group.micro_batches() {
            if micro_batch + 1 == group.micro_batches() {
                let key = self.key(Operation::BackwardDone);
                let listen = |overlap: &Overlap| overlap.listen(key, &sum.gradients, self.collective.as_ref());
                early = self.overlap.as_ref().map(listen);
            }
            sum.add(self.micro_batch(micro_batch, weight, early.clone())?);
        }
        let Exchange { counts, stop, part } = self.exchange(sum.counts)?;
        let gradients = self.reduce(sum.gradients, early)?;
        let gradient_norm = info_span!("gradient norm").in_scope(|| global_norm(&gradients)) / scale;
        // Until here the step has not happened; from here on nothing waits for others.
        self.confirm()?;
        if !gradient_norm.is_finite() || !counts.loss.is_finite() {
            self.leave_out()?;
            return Ok(StepResult { counts, gradient_norm, stop, part });
        }
        let factor = clip_factor(gradient_norm, self.plan.optim.clip_grad_norm) / scale;
        for statistics in sum.statistics {
            let _phase = info_span!("running statistics").entered();
            self.set_model(update_running_statistics(self.model(), statistics));
        }
        self.update(gradients, factor);
        if self.plan.precision.needs_loss_scale() {
            self.position.loss_scale.good();
        }
        Ok(StepResult { counts, gradient_norm, stop, part })
    }

    /// What this step's loss is multiplied by.
    fn loss_scale(&self) -> f64 {
        if self.plan.precision.needs_loss_scale() { self.position.loss_scale.scale } else { 1.0 }
    }

    /// Ends a step whose gradient is not finite. In f16 that is an overflow, and the step leaves everything as it was;
    /// all replicas come here together, as all hold the same reduced gradient.
    fn leave_out(&mut self) -> Result<()> {
        if self.plan.precision.needs_loss_scale() && self.position.loss_scale.overflow() {
            return Ok(());
        }
        Err(self.not_finite("the gradient", None))
    }

    /// This replica's share of one micro-batch: its summand of the mean gradient, and its losses and hits. After the
    /// last one of a step gradients are final, and `early` hears of them.
    fn micro_batch(&mut self, micro_batch: usize, weight: f64, early: Option<Arc<Early<B>>>) -> Result<Share<B>> {
        let batch = info_span!("wait for data").in_scope(|| self.batches.next());
        let (input, samples) = batch.ok_or_else(|| Error::Training("the loader ended before the run".into()))??;
        let is_present = samples > 0;
        let key = Key { micro_batch, ..self.key(Operation::BackwardDone) };
        let meeting = Meeting::new(self.collective.clone(), key);
        let context = if self.synchronizes() {
            ForwardContext::synchronized(meeting.statistics(), is_present)
        } else {
            ForwardContext::local()
        };
        let micro = Micro {
            input,
            samples,
            weight: if is_present { weight } else { 0.0 },
            context: context.in_precision(self.plan.precision).with_listener(early.map(|early| early as _)),
            fence: (self.collective.size() > 1).then(|| meeting.fence()),
        };
        // Rule 1: fresh leaves before every forward.
        self.learner.fork(&self.device);
        let TrainOutput { grads, item } = self.learner.train_step(micro);
        // Rule 2: nobody touches the graph before all backwards are over; the fence inside the step is its other half.
        info_span!("wait for replicas").in_scope(|| self.collective.barrier(key))?;
        let model = self.model();
        let gradients = flat_gradients(&model, grads).map_err(|tensor| {
            let name = parameter_names(&model).swap_remove(tensor);
            Error::Training(format!("no gradient for '{name}' on replica {}: {key}", self.collective.rank()))
        })?;
        // Synchronised statistics are everybody's, also where no sample of them was.
        let seen = is_present || self.synchronizes();
        let statistics = if seen { vec![item.statistics] } else { Vec::new() };
        Ok(Share { gradients, counts: if is_present { item.counts } else { Counts::default() }, statistics })
    }

    /// Whether batch-norm asks the other replicas.
    fn synchronizes(&self) -> bool {
        self.plan.sync_bn && self.collective.size() > 1
    }

    /// Adds up losses and hits, and agrees on whether to go on. A loss that is not a number ends the run here, before
    /// it can reach the weights; in f16 it may be an overflow, which is left to the gradient.
    fn exchange(&self, counts: Counts) -> Result<Exchange> {
        let mut values = counts.to_values().to_vec();
        values.push(self.plan.stop.reason().map_or(0, |reason| reason.number()).into());
        values.push(self.generation.as_ref().is_some_and(|generation| generation.is_ending()).into());
        let gather = || self.collective.all_gather(self.key(Operation::Counts), values);
        let all = info_span!("exchange of losses").in_scope(gather)?;
        let mut total = Counts::default();
        for (replica, values) in all.iter().enumerate() {
            let counts = Counts::from_values(values);
            if !counts.loss.is_finite() && !self.plan.precision.needs_loss_scale() {
                return Err(self.not_finite("the loss", Some(replica)));
            }
            total += counts;
        }
        let reason = all.iter().find_map(|values| Reason::of_number(values[Counts::VALUES] as u32));
        // What one process was told to do, all do.
        let stop = reason.map(|reason| self.plan.stop.request(reason)).is_some();
        let part = all.iter().any(|values| values[Counts::VALUES + 1] != 0.0);
        Ok(Exchange { counts: total, stop, part })
    }

    pub(super) fn not_finite(&self, what: &str, replica: Option<usize>) -> Error {
        let place = replica.map_or(String::new(), |replica| format!(" on replica {replica}"));
        Error::Training(format!(
            "{what} is not finite{place} at step {}; no weight was changed by it: lower --learning-rate, lengthen \
             --warmup-epochs or set --clip-grad-norm",
            self.position.global_step + 1
        ))
    }

    /// One step of the learner's optimizer, by `gradients` times `factor`.
    fn update(&mut self, gradients: Vec<Tensor<B, 1>>, factor: f64) {
        let _phase = info_span!("optimizer").entered();
        let scaled = |gradient: Tensor<B, 1>| if factor == 1.0 { gradient } else { gradient * factor };
        let limit = self.plan.optim.clip_grad_value;
        let cut = |gradient: Tensor<B, 1>| if limit > 0.0 { gradient.clamp(-limit, limit) } else { gradient };
        let gradients = gradients.into_iter().map(scaled).map(cut).collect();
        self.learner.optimizer_step(gradients_of(&self.learner.model(), gradients));
        if let Some(average) = &mut self.average {
            average.update(flat(&self.learner.model(), Which::All));
        }
        settle::<B>(&self.device);
    }
}
