//! The end of an epoch or of a run: validation, the report, the state to save.

use kiln_ops::BetweenSteps;
use kiln_system::Result;
use tracing::info_span;

use super::divergence::{OCCASIONS, Occasion};
use super::events::EpochReport;
use super::gathering::StatePart;
use super::remedy::raise_device_panic;
use super::validate::Evaluation;
use super::{Counts, Event, HostBackend, Key, Operation, Replica, Task, TrainingState};
use crate::nn::{TensorSet, float_tensors, part_of_state, with_flat};
use crate::optim::WeightAverage;
use crate::state::StateDict;

/// The first of the micro-batches that name the ways of a state at the end of a generation.
const HAND_OVER: usize = OCCASIONS;

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Validates, reports, saves, and begins the next epoch if this one is finished.
    pub(super) fn close_epoch(&mut self, finished: bool) -> Result<()> {
        let Evaluation { counts: validation, answers } = self.validate()?;
        let score = self.task.score(&validation);
        let is_best = self.position.best.is_none_or(|(best, _)| score > best);
        if is_best {
            self.position.best = Some((score, self.position.global_step));
        }
        let epoch = self.position.epoch;
        let done = epoch + usize::from(finished);
        let is_last = self.plan.is_over(done, self.position.best) || self.position.global_step >= self.plan.last_step;
        if self.stage.everyone.is_local_leader() {
            (self.report)(Event::Epoch(EpochReport {
                epoch,
                step: self.position.global_step,
                training: self.position.running,
                validation,
                answers,
                is_best,
                is_last,
                learning_rate: self.learner.lr_current(),
            }));
        }
        if finished {
            self.position.epoch += 1;
            self.position.step_in_epoch = 0;
            self.position.running = Counts::default();
            let (position, schedule) = (&mut self.position, &self.plan.schedule);
            position.plateau.validated(schedule, score, position.global_step);
            self.learner.load_scheduler((position.global_step, position.plateau.reductions));
        }
        let every = self.plan.save_every_epochs;
        let due = every > 0 && (epoch + 1).is_multiple_of(every);
        let wanted = every > 0 || self.plan.save_every_steps > 0;
        if due || is_last || !finished || (wanted && (is_best || self.plan.keeps_many)) {
            self.save(is_best, Some(score))?;
        }
        Ok(())
    }

    /// Sends the complete state to the coordinator, when that before is written; only the first replica of the world
    /// does.
    pub(super) fn save(&mut self, is_best: bool, score: Option<f64>) -> Result<()> {
        let occasion = if score.is_some() { Occasion::Epoch } else { Occasion::Step };
        self.make_room(occasion)?;
        // Replicas of one stage may shard the update while another stage's do not.
        let (is_gathered, is_first) = (!self.has_all(), self.collective.rank() == 0);
        let key = Key { micro_batch: occasion as usize, ..self.key(Operation::State { worker: 0 }) };
        let state = if is_gathered {
            let own = (is_first || self.reduction.own.is_some()).then(|| self.modules());
            let read = |module: Option<&str>| self.part(module);
            self.stage.gathered(key, 0, own.map(|modules| StatePart { modules, read: &read }))?
        } else {
            is_first.then(|| self.part(None))
        };
        raise_device_panic(&self.device);
        if let Some(state) = state {
            let state = Box::new(TrainingState { is_best, score, ..state });
            (self.report)(Event::Checkpoint(state, self.slot.take()));
        }
        if is_gathered {
            // Whoever went on and failed would take away what the first worker still waits for.
            self.stage.everyone.all_gather(key, Vec::new(), |all| all)?;
        }
        Ok(())
    }

    /// Gives every process the whole state at the end of a generation that nothing broke: the process that leaves may
    /// be the only one with its stages. The state is returned on the first worker of each process.
    pub(super) fn hand_over(&self) -> Result<Option<TrainingState>> {
        if self.stage.is_whole() {
            return Ok(None);
        }
        let _phase = info_span!("state for all processes").entered();
        let own = (self.collective.rank() == 0).then(|| self.modules());
        let read = |module: Option<&str>| self.part(module);
        let own = || own.clone().map(|modules| StatePart { modules, read: &read });
        let key = |number| Key { micro_batch: HAND_OVER + number, ..self.key(Operation::State { worker: 0 }) };
        let mut whole = None;
        for (number, block) in self.stage.world.blocks.iter().enumerate() {
            whole = self.stage.gathered(key(number), block.start, own())?.or(whole);
        }
        // As after saving.
        self.stage.everyone.all_gather(key(0), Vec::new(), |all| all)?;
        Ok(whole.map(|state| TrainingState { position: self.position.clone(), ..state }))
    }

    /// Whether this worker keeps all of the state of its part of the model.
    pub(super) fn keeps_state(&self) -> bool {
        self.plan.optim.ema_decay == 0.0 || self.average.is_some()
    }

    /// The state of this worker's part of the model, on the host; `None` if another replica keeps part of it.
    pub(super) fn state(&self) -> Option<TrainingState> {
        self.keeps_state().then(|| self.part(None))
    }

    /// The modules of this worker's part of the model that have tensors.
    fn modules(&self) -> Vec<String> {
        let names = float_tensors(&self.model()).into_iter().map(|tensor| tensor.name);
        let names = names.filter(|name| self.stage.has(name));
        let mut modules: Vec<String> = names.map(|name| module_of(&name).to_string()).collect();
        modules.dedup();
        modules
    }

    /// The part of the state that this worker keeps, or one module of it; what all replicas have, the first one does.
    fn part(&self, module: Option<&str>) -> TrainingState {
        let _phase = BetweenSteps::enter(info_span!("state to the host"));
        let is_wanted = |name: &str| self.stage.has(name) && module.is_none_or(|module| module_of(name) == module);
        let read = |model: T::Model| part_of_state(&model, &is_wanted);
        let averaged =
            |average: &WeightAverage<B>| read(with_flat(self.model(), TensorSet::All, average.values.clone()));
        let keeps_weights = self.reduction.own.is_none() || self.collective.rank() == 0;
        TrainingState {
            position: self.position.clone(),
            weights: if keeps_weights { read(self.model()) } else { StateDict::new() },
            optimizer: self.rule.lock().state_of(&is_wanted),
            average: self.average.as_ref().map(averaged),
            is_best: false,
            score: None,
        }
    }
}

fn module_of(tensor: &str) -> &str {
    tensor.rsplit_once('.').map_or("", |(module, _)| module)
}
