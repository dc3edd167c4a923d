//! What follows the last step of an epoch, or of a run: validation, the report of the epoch, the state to save.

use burn::train::InferenceStep;

use super::collective::Operation;
use super::device::HostBackend;
use super::events::{EpochReport, TrainingState};
use super::replica::{Event, Replica, ReplicaModel};
use super::transfer::{download, unpack};
use crate::error::Result;
use crate::model::{Tally, Which, flat, state_dict, with_flat};
use crate::optim::WeightAverage;

impl<B: HostBackend, M: ReplicaModel<B>> Replica<B, M> {
    /// Validates, reports, saves, and turns to the next epoch if this one is finished.
    pub(super) fn close_epoch(&mut self, finished: bool) -> Result<()> {
        let validation = self.validate()?;
        let accuracy = validation.accuracy();
        let is_best = self.position.best.is_none_or(|(best, _)| accuracy > best);
        if is_best {
            self.position.best = Some((accuracy, self.position.global_step));
        }
        let epoch = self.position.epoch;
        if self.collective.speaks() {
            (self.report)(Event::Epoch(EpochReport {
                epoch,
                step: self.position.global_step,
                training: self.position.running,
                validation,
                is_best,
                learning_rate: self.plan.schedule.at(self.position.global_step.saturating_sub(1)),
            }));
        }
        let over = !finished || epoch + 1 == self.plan.epochs || self.position.global_step >= self.plan.last_step;
        if finished {
            self.position.epoch += 1;
            self.position.step_in_epoch = 0;
            self.position.running = Tally::default();
        }
        let every = self.plan.save_every_epochs;
        let due = every > 0 && (epoch + 1).is_multiple_of(every);
        let wanted = every > 0 || self.plan.save_every_steps > 0;
        if due || over || (wanted && is_best) {
            self.save(is_best);
        }
        Ok(())
    }

    /// Losses and hits over the whole validation set, each image once. No collective inside the model.
    fn validate(&mut self) -> Result<Tally> {
        let _phase = tracing::info_span!("validation").entered();
        let model = self.evaluation_model()?.valid();
        let (batches, total) = self.plan.validation_shard(self.collective.rank())?;
        let mut tally = Tally::default();
        for (done, batch) in batches.enumerate() {
            tally += model.step(self.plan.evaluation_batch::<B>(batch?, &self.device));
            if self.collective.speaks() {
                (self.report)(Event::Validating { done: done + 1, total });
            }
        }
        let all = self.collective.all_gather(self.key(Operation::Validation), tally.to_values().to_vec())?;
        let mut sum = Tally::default();
        all.iter().for_each(|values| sum += Tally::from_values(values));
        Ok(sum)
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

    /// Hands the complete state to the coordinator; the first replica of the world does it for all.
    pub(super) fn save(&mut self, is_best: bool) {
        if self.collective.rank() > 0 {
            return;
        }
        if let Some(state) = self.state() {
            (self.report)(Event::Checkpoint(Box::new(TrainingState { is_best, ..state })));
        }
    }

    /// The complete state, on the host; none where part of it is kept by another replica.
    pub(super) fn state(&self) -> Option<TrainingState> {
        let optimizer = self.optimizer.as_ref()?;
        if self.plan.optim.ema_decay > 0.0 && self.average.is_none() {
            return None;
        }
        let _phase = tracing::info_span!("state to the host").entered();
        let averaged = |average: &WeightAverage<B>| {
            state_dict(&with_flat(self.model.clone(), Which::All, average.values().to_vec()))
        };
        Some(TrainingState {
            position: self.position.clone(),
            weights: state_dict(&self.model),
            optimizer: optimizer.state(),
            average: self.average.as_ref().map(averaged),
            is_best: false,
        })
    }
}
