//! How a worker becomes a replica: its device, its part of the model, and the state that it goes on from.

use std::collections::HashSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use burn::module::Module;
use kiln_ops::upload;
use kiln_system::Result;

use super::accumulation::Accumulation;
use super::batches::batches;
use super::micro_batch_group::Agreed;
use super::outcome::Reading;
use super::position::StartingPoint;
use super::recording::Recording;
use super::reduction::Reduction;
use super::remedy::forget_device_panic;
use super::replica::verdict;
use super::sharding::{is_parted, shares};
use super::{
    Collective, Event, Generation, HostBackend, Plan, Recipe, Recorded, Replica, Slot, Split, Stage, Task, World,
};
use crate::nn::{TensorSet, Weights, flat, float_tensors, kernels, only, trained_parameters};
use crate::optim::{self, WeightAverage};

pub(super) struct Worker {
    pub(super) collective: Arc<Collective>,
    pub(super) everyone: Arc<Collective>,
    pub(super) world: World,
    /// The units of every stage.
    pub(super) cut: Vec<Range<usize>>,
    pub(super) slot: Slot,
}

impl<B: HostBackend, T: Task<B>> Replica<B, T> {
    /// Makes a replica by `new`; if that fails, aborts its `groups`, so that no other replica waits for this one.
    pub(super) fn set_up(groups: [&Collective; 2], new: impl FnOnce() -> Result<Self>) -> Result<Self> {
        let replica = catch_unwind(AssertUnwindSafe(new))
            .unwrap_or_else(|panic| Err(verdict(panic, groups[0].rank(), "while it was set up")));
        replica.inspect_err(|error| groups.into_iter().for_each(|group| group.abort(error.into())))
    }

    /// A replica ready for its first step.
    pub(super) fn new(
        recipe: &Recipe<B, T>,
        plan: Arc<Plan>,
        worker: Worker,
        model: T::Model,
        start: &StartingPoint,
        report: Box<dyn FnMut(Event) + Send>,
        generation: Arc<dyn Generation>,
    ) -> Result<Self> {
        let Worker { collective, everyone, world, cut, slot } = worker;
        let rank = collective.rank();
        let device = B::open(plan.world.device_of(rank))?;
        forget_device_panic(&device);
        let task = recipe.task.clone();
        let stage = Stage::new(&world, &cut, task.as_ref(), &model, everyone, device.clone())?;
        let tensors = trained_parameters(&model).count();
        let names: Vec<String> = float_tensors(&model).into_iter().map(|tensor| tensor.name).collect();
        let is_own = |name: &str| stage.has(name);
        let model = if stage.is_whole() { model } else { only(model, &is_own) };
        let model = model.fork(&device);
        let trained: Vec<Weights> = trained_parameters(&model).collect();
        let is_in_parts = recipe.rule.is_none() && !generation.is_elastic() && is_parted::<B>(&plan, &collective);
        let own = is_in_parts.then(|| {
            let lengths: Vec<usize> = trained.iter().map(|tensor| tensor.shape.iter().product()).collect();
            shares(&lengths, collective.size()).swap_remove(rank)
        });
        let (learner, rule) = recipe.learner(&plan, model, &start.position, own.clone());
        let model = learner.model().into_model();
        match &start.optimizer {
            Some(state) if stage.is_whole() && own.is_none() => rule.lock().load(state, &device)?,
            Some(state) => {
                let others = own.iter().flat_map(|own| trained[..own.start].iter().chain(&trained[own.end..]));
                let others: HashSet<&str> = others.map(|tensor| &*tensor.name).collect();
                let own = state.iter().filter(|(name, _)| is_own(name) && !others.contains(optim::tensor_of(name)));
                let state = own.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
                rule.lock().load(&state, &device)?;
            }
            None => {}
        }
        let world = &plan.world;
        let first = rank == 0 || (generation.is_elastic() && rank == world.shares[world.slot_of(rank)].start);
        let averaged = first && plan.optim.ema_decay > 0.0;
        let average = averaged.then(|| {
            let values = match &start.average {
                Some(values) => {
                    let own = values.iter().zip(&names).filter(|(_, name)| is_own(name));
                    own.map(|(value, _)| upload(value, &device)).collect()
                }
                None => flat(&model, TensorSet::All),
            };
            WeightAverage::new(plan.optim.ema_decay, plan.averaged_steps(), values)
        });
        plan.check_samples(task.as_ref())?;
        let shards = stage.shards(plan.shards(rank, &start.position));
        let batches = batches(&task, Split::Training, shards, &device)?;
        let kernels = kernels(&model);
        let gradients = Arc::new(Accumulation::new(&kernels));
        let reduction = Reduction::new(collective.clone(), kernels, &plan, own, device.clone())?;
        let arenas = rule.lock().arenas().filter(|_| reduction.takes_packed());
        let has_all = stage.is_whole() && reduction.own.is_none();
        let is_ours = has_all
            && !(collective.size() > 1 && plan.sync_bn)
            && !generation.is_elastic()
            && recipe.rule.is_none()
            && !task.sees_gradients();
        let graph = || match plan.recorded {
            Recorded::By(new) => new(),
            _ => B::graph(plan.world.device_of(rank)),
        };
        let recording = plan.recorded.is_on().then(|| Recording::new(&plan, is_ours, graph)).transpose()?;
        let waits = plan.precision.needs_loss_scale() || generation.is_elastic() || !has_all;
        let is_late = recording.is_some() || !(B::is_processor() || waits);
        Ok(Self {
            position: start.position.clone(),
            task,
            plan,
            collective,
            stage,
            tensors,
            device,
            learner,
            rule,
            average,
            batches,
            next: None,
            recording,
            reading: Reading { is_late, unread: None },
            work: None,
            measures: false,
            measured: Instant::now(),
            gradients,
            reduction,
            arenas,
            agreed: Agreed::default(),
            report,
            generation,
            slot,
        })
    }
}
