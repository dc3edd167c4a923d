//! The validation after an epoch: every sample once, on the replica that owns it.

use std::sync::Arc;

use burn::module::AutodiffModule;
use burn::tensor::Tensor;
use kiln_ops::{BetweenSteps, download};
use kiln_system::Result;
use tracing::info_span;

use super::batches::batches;
use super::counts::COUNTED;
use super::sampler::validation_place;
use super::sharding::lengths;
use super::task_model::Results;
use super::tensors::parts;
use super::{
    Counts, Evaluated, Event, Handle, HostBackend, Key, ModelPart, Operation, Plan, ReducePrecision, Replica, Shard,
    Share, Split, Task, TaskModel,
};
use crate::nn::{ForwardContext, TensorSet, flat, with_flat};

/// How many batches a device may lag behind the host, which holds their pixels until then.
const BEHIND: usize = 8;

/// Losses, counts and answers of an evaluation.
#[derive(Debug, Clone, Default)]
pub struct Evaluation {
    pub counts: Counts,
    /// The task's answers for each sample.
    pub answers: Vec<f64>,
}

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Losses and counts over the whole validation set, and on the first replica of the process the answers in the
    /// order of the samples. The model runs without collectives.
    pub(super) fn validate(&mut self) -> Result<Evaluation> {
        let _phase = BetweenSteps::enter(info_span!("validation"));
        let model = self.evaluation_model()?.valid();
        let (rank, speaks) = (self.collective.rank(), self.stage.everyone.is_local_leader());
        let (stage, key) = (&self.stage, self.key(Operation::Validation));
        let report = |done, total| {
            if speaks {
                (self.report)(Event::Validating { done, total });
            }
        };
        let model = TaskModel::new(model, Handle(self.task.clone()));
        let context = ForwardContext::evaluate().in_precision(self.plan.precision);
        let pass = |input, micro_batch| {
            let key = Key { micro_batch, ..key };
            match model.evaluate(input, stage.part(key)?, &context) {
                Ok(results) => Ok(Some(results)),
                Err(activations) => Ok(stage.pass_on(key, activations).map(|()| None)?),
            }
        };
        let shards = stage.shards(self.plan.validation_shards(rank).into_iter()).collect();
        let own = evaluate_batches::<B, T>(&self.task, shards, &self.device, pass, report)?;
        let mut message = own.counts.to_values().to_vec();
        message.extend(own.answers);
        // All messages must have the same length.
        let most = self.plan.samples_to_validate().div_ceil(self.collective.size());
        message.resize(Counts::VALUES + T::ANSWERS * most, 0.0);
        let all = self.stage.everyone.all_gather(key, message, |all| all)?;
        // The workers of the last stage have the results.
        let all = &all[all.len() - self.collective.size()..];
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
        if !averaging && (alone || self.plan.sync_bn || self.plan.averages_statistics()) {
            return Ok(self.model());
        }
        let (key, own) = (self.key(Operation::EvaluationModel), flat(&self.model(), TensorSet::All));
        let lengths = lengths(&own);
        let values = self.average.as_ref().map_or(own, |average| average.values.clone());
        if alone {
            return Ok(with_flat(self.model(), TensorSet::All, values));
        }
        // Any number plus minus zero is that number.
        let nothing = |tensor: Tensor<B, 1>| tensor.zeros_like().neg();
        let is_first = self.collective.rank() == 0;
        let share = if is_first { values } else { values.into_iter().map(nothing).collect() };
        let collective = self.collective.as_ref();
        let sum = Share::new(collective, share)?.all_reduce(collective, key, ReducePrecision::F32)?;
        Ok(with_flat(self.model(), TensorSet::All, parts(sum, &lengths)))
    }
}

/// Evaluates `model` on the part of the validation set that `replica` owns, and reads the results once, at the end;
/// `report` gets the number of batches done and of all batches.
///
/// # Errors
/// If a sample cannot be read.
pub fn evaluate_shard<B: HostBackend, T: Task<B>>(
    task: &Arc<T>,
    plan: &Plan,
    model: Evaluated<B, T>,
    replica: usize,
    device: &B::Device,
    report: impl FnMut(usize, usize),
) -> Result<Evaluation> {
    let model = TaskModel::new(model, Handle(task.clone()));
    let context = ForwardContext::evaluate().in_precision(plan.precision);
    let pass = |input, _| Ok(model.evaluate(input, ModelPart::whole(task.as_ref()), &context).ok());
    evaluate_batches::<B, T>(task, plan.validation_shards(replica), device, pass, report)
}

/// As [`evaluate_shard`], by `pass`, which gets a batch and its number and has no results before the last stage.
fn evaluate_batches<B: HostBackend, T: Task<B>>(
    task: &Arc<T>,
    shards: Vec<Shard>,
    device: &B::Device,
    pass: impl Fn(T::Input, usize) -> Result<Option<Results<B>>>,
    mut report: impl FnMut(usize, usize),
) -> Result<Evaluation> {
    let total = shards.len();
    let mut results = Vec::with_capacity(total);
    for (done, batch) in batches(task, Split::Validation, shards.into_iter(), device)?.enumerate() {
        results.extend(pass(batch?.0, done)?);
        if !B::is_processor() && (done + 1).is_multiple_of(BEHIND) {
            // An error of the device is reported by the read.
            drop(B::sync(device));
        }
        report(done + 1, total);
    }
    Ok(read(results))
}

/// The sums and the answers of several batches.
fn read<B: HostBackend>(results: Vec<Results<B>>) -> Evaluation {
    let lengths = |it: &Results<B>| {
        let answers = it.answers.as_ref().map_or(0, |answers| answers.dims().iter().product());
        (it.losses.dims()[0], it.counted.as_ref().map_or(0, |_| COUNTED), answers)
    };
    let lengths: Vec<(usize, usize, usize)> = results.iter().map(lengths).collect();
    let flat =
        |it: Results<B>| std::iter::once(it.losses).chain(it.counted).chain(it.answers.map(|it| it.flatten(0, 1)));
    let values = download(Vec::new(), results.into_iter().flat_map(flat).collect());
    let (mut evaluation, mut rest) = (Evaluation::default(), &values[..]);
    let mut take =
        |length| rest.split_off(..length).expect("all tensors have been read").iter().copied().map(f64::from);
    for (samples, counts, answers) in lengths {
        let loss = take(samples).sum();
        let mut counted = [0.0; COUNTED];
        counted.iter_mut().zip(take(counts)).for_each(|(count, sum)| *count = sum);
        evaluation.counts += Counts { loss, samples, counted };
        evaluation.answers.extend(take(answers));
    }
    evaluation
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
