//! The validation after an epoch: every image once, on whichever replica has it.

use burn::train::InferenceStep;

use super::collective::Operation;
use super::device::HostBackend;
use super::replica::{Event, Replica, ReplicaModel};
use super::transfer::{download, unpack};
use crate::data::validation_place;
use crate::error::Result;
use crate::model::{EvaluationOutput, Prediction, Tally, Which, flat, for_evaluation, with_flat};

/// Numbers of a [`Tally`] in a replica's message.
const TALLY: usize = 4;

impl<B: HostBackend, M: ReplicaModel<B>> Replica<B, M> {
    /// Losses and hits over the whole validation set, and for the replica that speaks, the predictions in the order of
    /// the images. No collective inside the model.
    pub(super) fn validate(&mut self) -> Result<EvaluationOutput> {
        let _phase = tracing::info_span!("validation").entered();
        let model = for_evaluation(self.evaluation_model()?.valid());
        let (batches, total) = self.plan.validation_shard(self.collective.rank())?;
        let mut own = EvaluationOutput::default();
        for (done, batch) in batches.enumerate() {
            let EvaluationOutput { tally, predictions } =
                model.step(self.plan.evaluation_batch::<B>(batch?, &self.device));
            own.tally += tally;
            own.predictions.extend(predictions);
            if self.collective.speaks() {
                (self.report)(Event::Validating { done: done + 1, total });
            }
        }
        let message = encode(&own, self.plan.validation_images().div_ceil(self.collective.size()));
        let all = self.collective.all_gather(self.key(Operation::Validation), message)?;
        let mut sum = Tally::default();
        all.iter().for_each(|values| sum += Tally::from_values(values));
        let predictions = if self.collective.speaks() { interleave(&all, sum.samples) } else { Vec::new() };
        Ok(EvaluationOutput { tally: sum, predictions })
    }

    /// The first replica's model, averaged if averaging is on. Where all replicas hold the same, nothing is sent.
    fn evaluation_model(&self) -> Result<M> {
        let averaging = self.plan.optim.ema_decay > 0.0;
        let alone = self.collective.size() == 1;
        if !averaging && (alone || self.plan.sync_bn) {
            return Ok(self.model.clone());
        }
        let own = flat(&self.model, Which::All);
        let lengths: Vec<usize> = own.iter().map(|tensor| tensor.dims()[0]).collect();
        let values = self.average.as_ref().map_or(own, |average| average.values().to_vec());
        if alone {
            return Ok(with_flat(self.model.clone(), Which::All, values));
        }
        let sent = (self.collective.rank() == 0).then(|| download(values));
        let values = self.collective.broadcast(self.key(Operation::EvaluationModel), 0, sent)?;
        Ok(with_flat(self.model.clone(), Which::All, unpack(&values, &lengths, &self.device)))
    }
}

/// What a replica tells the others; with room for `images`, so that all messages have one length.
fn encode(own: &EvaluationOutput, images: usize) -> Vec<f64> {
    let mut message = own.tally.to_values().to_vec();
    message.extend(own.predictions.iter().flat_map(|it| [f64::from(it.class), f64::from(it.confidence)]));
    message.resize(TALLY + 2 * images, 0.0);
    message
}

/// The predictions of all replicas in the order of the images.
fn interleave(all: &[Vec<f64>], images: usize) -> Vec<Prediction> {
    let prediction = |image: usize| {
        let (replica, place) = validation_place(image, all.len());
        let values = &all[replica][TALLY + 2 * place..];
        Prediction { class: values[0] as u32, confidence: values[1] as f32 }
    };
    (0..images).map(prediction).collect()
}
