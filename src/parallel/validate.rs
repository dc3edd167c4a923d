//! The validation after an epoch: every sample once, on the replica that owns it.

use std::sync::Arc;

use burn::module::AutodiffModule;
use burn_train::InferenceStep;

use super::counts::Counts;
use super::device::HostBackend;
use super::key::Operation;
use super::plan::Plan;
use super::replica::{Event, Replica, loader};
use super::sampler::validation_place;
use super::task::{Evaluated, Split, Task};
use super::trainee::{Evaluation, Handle, Trainee};
use super::transfer::{download, unpack};
use crate::error::Result;
use crate::nn::{ForwardContext, Which, flat, with_flat};

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Losses and counts over the whole validation set, and on the first replica of the process the answers in the
    /// order of the samples. The model runs without collectives.
    pub(super) fn validate(&mut self) -> Result<Evaluation> {
        let _phase = tracing::info_span!("validation").entered();
        let model = self.evaluation_model()?.valid();
        let (rank, speaks) = (self.collective.rank(), self.collective.is_local_leader());
        let report = |done, total| {
            if speaks {
                (self.report)(Event::Validating { done, total });
            }
        };
        let own = evaluate_shard::<B, T>(&self.task, &self.plan, model, rank, &self.device, report)?;
        let mut message = own.counts.to_values().to_vec();
        message.extend(own.answers);
        // All messages must have the same length.
        let most = self.plan.samples_to_validate().div_ceil(self.collective.size());
        message.resize(Counts::VALUES + T::ANSWERS * most, 0.0);
        let all = self.collective.all_gather(self.key(Operation::Validation), message, |all| all)?;
        let of = |values: &Vec<f64>| Evaluation {
            counts: Counts::from_values(values),
            answers: if speaks { values[Counts::VALUES..].to_vec() } else { Vec::new() },
        };
        let shards: Vec<_> = all.iter().map(of).collect();
        Ok(merged(&shards, if speaks { T::ANSWERS } else { 0 }))
    }

    /// The first replica's model, averaged if averaging is on. Nothing is sent if all replicas hold the same.
    fn evaluation_model(&self) -> Result<T::Model> {
        let averaging = self.plan.optim.ema_decay > 0.0;
        let alone = self.collective.size() == 1;
        if !averaging && (alone || self.plan.sync_bn) {
            return Ok(self.model());
        }
        let own = flat(&self.model(), Which::All);
        let lengths: Vec<usize> = own.iter().map(|tensor| tensor.dims()[0]).collect();
        let values = self.average.as_ref().map_or(own, |average| average.values.clone());
        if alone {
            return Ok(with_flat(self.model(), Which::All, values));
        }
        let sent = (self.collective.rank() == 0).then(|| download(Vec::new(), values));
        let values = self.collective.broadcast(self.key(Operation::EvaluationModel), 0, sent)?;
        Ok(with_flat(self.model(), Which::All, unpack(&values, &lengths, &self.device)))
    }
}

/// Evaluates `model` on the part of the validation set that `replica` owns; `report` gets the number of batches done
/// and of all batches.
///
/// # Errors
/// If a sample cannot be read.
pub fn evaluate_shard<B: HostBackend, T: Task<B>>(
    task: &Arc<T>,
    plan: &Plan,
    model: Evaluated<B, T>,
    replica: usize,
    device: &B::Device,
    mut report: impl FnMut(usize, usize),
) -> Result<Evaluation> {
    let model = Trainee::new(model, Handle(task.clone()));
    let context = ForwardContext::evaluate().in_precision(plan.precision);
    let shards = plan.validation_shards(replica);
    let total = shards.len();
    let mut sum = Evaluation::default();
    for (done, batch) in loader(task, Split::Validation, shards.into_iter(), device)?.enumerate() {
        let Evaluation { counts, answers } = model.step((batch?.0, context.clone()));
        sum.counts += counts;
        sum.answers.extend(answers);
        report(done + 1, total);
    }
    Ok(sum)
}

/// Merges the results of all replicas; answers, `each` numbers per sample, are in the order of the samples.
pub fn merged(shards: &[Evaluation], each: usize) -> Evaluation {
    let mut counts = Counts::default();
    shards.iter().for_each(|shard| counts += shard.counts);
    let of = |sample: usize| {
        let (replica, place) = validation_place(sample, shards.len());
        &shards[replica].answers[each * place..][..each]
    };
    let answers = if each == 0 { Vec::new() } else { (0..counts.samples).flat_map(of).copied().collect() };
    Evaluation { counts, answers }
}
