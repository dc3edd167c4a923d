//! One optimizer step of one replica: micro-batches, the exchange of losses, the reduction, the update.

use std::sync::Arc;

use burn::backend::Autodiff;
use burn::module::Module;
use burn::tensor::Tensor;
use burn::train::{TrainOutput, TrainStep};
use tracing::info_span;

use super::collective::{Key, Operation};
use super::counts::Counts;
use super::device::HostBackend;
use super::overlap::{Early, Overlap, Reduced, all_reduce, in_buckets};
use super::plan::Sharing;
use super::replica::Replica;
use super::sampler::Group;
use super::synchronization::Meeting;
use super::task::Task;
use super::trainee::{Handle, Micro, Trainee};
use super::transfer::{download, download_to, unpack};
use crate::error::{Error, Result};
use crate::nn::{
    BatchStatistics, ForwardContext, Which, flat, flat_gradients, parameter_names, update_running_statistics, with_flat,
};
use crate::ops::settle;
use crate::optim::{clip_factor, global_norm};
use crate::stop::Reason;

/// What a step gives beside new weights.
pub(super) struct StepResult {
    pub(super) counts: Counts,
    pub(super) gradient_norm: f64,
    pub(super) stop: bool,
    /// Whether the generation ends with this step.
    pub(super) part: bool,
}

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
    pub(super) fn step(&mut self, group: &Group, learning_rate: f64) -> Result<StepResult> {
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
            self.model = update_running_statistics(self.model.clone(), statistics);
        }
        self.update(learning_rate, gradients, factor)?;
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
        let (batch, samples) = batch.ok_or_else(|| Error::Training("the loader ended before the run".into()))??;
        let is_present = samples > 0;
        let key = Key { micro_batch, ..self.key(Operation::BackwardDone) };
        let meeting = Meeting::new(self.collective.clone(), key);
        let context = if self.synchronizes() {
            ForwardContext::synchronized(meeting.statistics(), is_present)
        } else {
            ForwardContext::local()
        };
        let micro = Micro {
            input: info_span!("upload").in_scope(|| self.task.to_device(batch, &self.device)),
            samples,
            weight: if is_present { weight } else { 0.0 },
            context: context.in_precision(self.plan.precision).heard_by(early.map(|early| early as _)),
            fence: (self.collective.size() > 1).then(|| meeting.fence()),
        };
        // Rule 1: fresh leaves before every forward.
        self.model = self.model.clone().fork(&self.device);
        let TrainOutput { grads, item } = Trainee::new(self.model.clone(), Handle(self.task.clone())).step(micro);
        // Rule 2: nobody touches the graph before all backwards are over; the fence inside the step is its other half.
        info_span!("wait for replicas").in_scope(|| self.collective.barrier(key))?;
        let gradients = flat_gradients(&self.model, grads).map_err(|tensor| {
            let name = parameter_names(&self.model).swap_remove(tensor);
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

    /// The sum of all replicas' gradients, which is the mean over the samples of the step. What `early` has heard of is
    /// under way already.
    fn reduce(&self, mut gradients: Vec<Tensor<B, 1>>, early: Option<Arc<Early<B>>>) -> Result<Vec<Tensor<B, 1>>> {
        if self.collective.size() == 1 {
            return Ok(gradients);
        }
        let _phase = info_span!("all-reduce").entered();
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
        // In pieces, which takes memory for one at a time. Numbers of buckets that went early are taken.
        let left = (0..gradients.len()).filter(|place| !is_done[*place]);
        for (i, places) in in_buckets(left, |place| gradients[*place].dims()[0]).into_iter().enumerate() {
            let key = self.key(Operation::Gradients { bucket: if i == 0 { 0 } else { buckets + i } });
            let shares = places.iter().map(|place| gradients[*place].clone()).collect();
            let share = download_to(self.collective.buffer(), shares);
            let sum = all_reduce(self.collective.as_ref(), key, share, self.plan.reduce_precision)?;
            self.replace(&mut gradients, &places, sum);
        }
        Ok(gradients)
    }

    /// Replaces the gradients at `places` by their sums, one after the other.
    fn replace(&self, gradients: &mut [Tensor<B, 1>], places: &[usize], sum: Arc<Vec<f32>>) {
        let lengths: Vec<usize> = places.iter().map(|place| gradients[*place].dims()[0]).collect();
        for (place, total) in places.iter().zip(unpack(&sum, &lengths, &self.device)) {
            gradients[*place] = total;
        }
        self.collective.recycle(sum);
    }

    /// One optimizer step, here or on the first replica.
    fn update(&mut self, learning_rate: f64, gradients: Vec<Tensor<B, 1>>, factor: f64) -> Result<()> {
        let _phase = info_span!("optimizer").entered();
        let params = flat(&self.model, Which::Trained);
        let lengths: Vec<usize> = params.iter().map(|param| param.dims()[0]).collect();
        let mut updated = self.optimizer.as_mut().map(|optimizer| {
            let scaled = |gradient: Tensor<B, 1>| if factor == 1.0 { gradient } else { gradient * factor };
            let limit = self.plan.optim.clip_grad_value;
            let cut = |gradient: Tensor<B, 1>| if limit > 0.0 { gradient.clamp(-limit, limit) } else { gradient };
            optimizer.step(learning_rate, params, gradients.into_iter().map(scaled).map(cut).collect())
        });
        if self.plan.sharing == Sharing::Central && self.collective.size() > 1 {
            let values = updated.take().map(download);
            let values = self.collective.broadcast(self.key(Operation::Weights), 0, values)?;
            updated = Some(unpack(&values, &lengths, &self.device));
        }
        if let Some(updated) = updated {
            self.model = with_flat(self.model.clone(), Which::Trained, updated);
        }
        if let Some(average) = &mut self.average {
            average.update(flat(&self.model, Which::All));
        }
        settle::<B>(&self.device);
        Ok(())
    }
}
