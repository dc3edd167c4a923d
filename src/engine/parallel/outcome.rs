//! What a step has computed, on its way to the host: losses, counts and the gradient's norm, in one copy.
//!
//! A device that waits for the host is idle. So the outcome of a step is read when the next step is queued, or at the
//! end of an epoch, before anything is saved. It is read at once on a processor, in f16, where the update depends on
//! it, and in an elastic run, which may end after any step.

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use kiln_ops::{Later, download, primitive};
use kiln_system::Error;

use super::counts::COUNTED;
use super::{Counts, HostBackend, StepReport};
use crate::nn::BatchStatistics;

/// The sums over the samples of a micro-batch.
#[derive(Debug, Clone)]
pub struct Sums<B: HostBackend> {
    /// Of the losses, `[1]`.
    pub loss: Tensor<B, 1>,
    /// What the task counts, `[COUNTED]`, if it does.
    pub counted: Option<Tensor<B, 1>>,
    pub samples: usize,
}

/// The batch statistics of each micro-batch with a sample, by layer.
pub(super) type Statistics<B> = Vec<Vec<BatchStatistics<Autodiff<B>>>>;

/// The sums of the task's counts over one or several micro-batches, and the norms of the gradient, of one replica.
pub(super) struct Outcome {
    /// Complete but for what is still to be read.
    pub(super) report: StepReport,
    samples: Vec<usize>,
    each: usize,
    values: Later,
    scale: f64,
}

pub(super) struct Read {
    pub(super) counts: Counts,
    pub(super) norms: Vec<f32>,
    /// The factor on the loss, and so on the norms.
    pub(super) scale: f64,
}

impl Default for Read {
    fn default() -> Self {
        Self { counts: Counts::default(), norms: Vec::new(), scale: 1.0 }
    }
}

impl Outcome {
    /// Starts the copy; waits for it unless it is read late.
    pub(super) fn new<B: HostBackend>(
        report: StepReport,
        sums: Vec<Sums<B>>,
        norms: Vec<Tensor<B, 1>>,
        scale: f64,
        is_late: bool,
    ) -> Self {
        let each = 1 + sums.first().and_then(|sums| sums.counted.as_ref()).map_or(0, |_| COUNTED);
        let samples = sums.iter().map(|sums| sums.samples).collect();
        let sums = sums.into_iter().flat_map(|sums| std::iter::once(sums.loss).chain(sums.counted));
        let values: Vec<_> = sums.chain(norms).collect();
        let values: Later = if is_late && !values.is_empty() {
            B::read_later(primitive(Tensor::cat(values, 0)))
        } else {
            let values = download(Vec::new(), values);
            Box::new(|| values)
        };
        Self { report, samples, each, values, scale }
    }

    /// Waits for the copy. The report lacks the sums over all workers.
    pub(super) fn read(self) -> (Read, StepReport) {
        let values = (self.values)();
        let (sums, norms) = values.split_at(self.each * self.samples.len());
        let mut counts = Counts::default();
        for (sums, samples) in sums.chunks_exact(self.each).zip(self.samples) {
            let mut counted = [0.0; COUNTED];
            counted.iter_mut().zip(&sums[1..]).for_each(|(count, sum)| *count = f64::from(*sum));
            counts += Counts { loss: sums[0].into(), samples, counted };
        }
        (Read { counts, norms: norms.to_vec(), scale: self.scale }, self.report)
    }
}

/// When the outcomes of steps are read: before the update, or late, when the next step is queued.
pub(super) struct Reading {
    pub(super) is_late: bool,
    /// That of the last step, until it is read.
    pub(super) unread: Option<Outcome>,
}

impl Reading {
    /// Takes the outcome of a step; returns the one to read now.
    pub(super) fn next(&mut self, outcome: Outcome) -> Option<Outcome> {
        if self.is_late { self.unread.replace(outcome) } else { Some(outcome) }
    }
}

/// The error for a number of `step` that is not finite.
pub(super) fn not_finite(what: &str, replica: Option<usize>, step: usize) -> Error {
    let place = replica.map_or(String::new(), |replica| format!(" on replica {replica}"));
    Error::Training(format!(
        "{what} is not finite{place} at step {step}; no checkpoint has it: lower --learning-rate, lengthen \
         --warmup-epochs or set --clip-grad-norm"
    ))
}
