//! A network on the devices of one backend, as programs see it that know no backend.

use std::sync::Arc;
use std::time::Duration;

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::tensor::activation::softmax;
use kiln_data::HostBatch;
use kiln_engine::nn::{ForwardContext, Weights, float_tensors, load_state, state_dict};
use kiln_engine::parallel::{
    DataParallel, Evaluation, HostBackend, Membership, Observer, Plan, Processes, StartingPoint, Task, Timing,
    TrainingState, evaluate_shard, merged, time_units,
};
use kiln_engine::state::StateDict;
use kiln_ops::{download, tensor};
use kiln_system::{Error, Result};

use super::classification::Classification;
use super::model::{ParameterCount, ResNet, count_parameters};

/// What a network is trained by.
pub struct Training {
    pub task: Arc<Classification>,
    pub plan: Arc<Plan>,
    pub start: StartingPoint,
    /// How long replicas wait for each other at most.
    pub limit: Duration,
    pub observer: Box<dyn Observer>,
    /// The other processes, unless there are none.
    pub processes: Option<Processes>,
    /// Of an elastic run.
    pub membership: Option<Box<dyn Membership>>,
}

pub trait Network: Send {
    fn parameters(&self) -> ParameterCount;

    /// Its float tensors, without their values.
    fn tensors(&self) -> Vec<Weights>;

    /// Its weights and statistics by torchvision's names.
    fn state(&self) -> StateDict;

    /// The network with the weights of `state`; `origin` names their source in errors.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the tensors are not those of the network.
    fn load(self: Box<Self>, state: &StateDict, origin: &str) -> Result<Box<dyn Network>>;

    /// The network as a run had it in `state`, and the rest of that.
    ///
    /// # Errors
    /// As [`Network::load`].
    fn restore(self: Box<Self>, state: &TrainingState, origin: &str) -> Result<(Box<dyn Network>, StartingPoint)>;

    /// Trains until the plan is done or stopped.
    fn train(self: Box<Self>, training: Training) -> Result<()>;

    /// Evaluates the shards of all replicas at the same time; the sums do not depend on their number. `report` gets the
    /// batches of the first replica that are done, and all of them.
    fn evaluate(
        &self,
        task: &Arc<Classification>,
        plan: &Plan,
        report: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Evaluation>;

    /// The probabilities of the classes of each image, `[batch, classes]`.
    fn probabilities(&self, batch: &HostBatch, device: usize) -> Result<Vec<f32>>;

    /// Times the units of the network on `devices`, all at the same time.
    fn time_units(&self, task: &Arc<Classification>, plan: &Arc<Plan>, devices: &[usize]) -> Result<Timing>;
}

pub(super) struct On<B: HostBackend>(pub(super) ResNet<Autodiff<B>>);

impl<B: HostBackend> Network for On<B> {
    fn parameters(&self) -> ParameterCount {
        count_parameters(&self.0)
    }

    fn tensors(&self) -> Vec<Weights> {
        float_tensors(&self.0)
    }

    fn state(&self) -> StateDict {
        state_dict(&self.0)
    }

    fn load(self: Box<Self>, state: &StateDict, origin: &str) -> Result<Box<dyn Network>> {
        Ok(Box::new(Self(load_state(self.0, state, origin)?)))
    }

    fn restore(self: Box<Self>, state: &TrainingState, origin: &str) -> Result<(Box<dyn Network>, StartingPoint)> {
        let (model, start) = StartingPoint::restore(self.0, state, origin)?;
        Ok((Box::new(Self(model)), start))
    }

    fn train(self: Box<Self>, training: Training) -> Result<()> {
        let Training { task, plan, start, limit, observer, processes, membership } = training;
        let strategy = DataParallel::<B, _>::new(task, plan, start, limit, observer).with(processes);
        let strategy = match membership {
            Some(membership) => strategy.elastic(membership),
            None => strategy,
        };
        kiln_engine::train(self.0, strategy)
    }

    fn evaluate(
        &self,
        task: &Arc<Classification>,
        plan: &Plan,
        report: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Evaluation> {
        let model = self.0.valid();
        let shard = |replica: usize, model: ResNet<B>| -> Result<Evaluation> {
            let device = B::open(plan.world.device_of(replica))?;
            // All shards take about as long as the first.
            let report = |done, all| {
                if replica == 0 {
                    report(done, all)
                }
            };
            evaluate_shard::<B, _>(task, plan, model.to_device(&device), replica, &device, report)
        };
        std::thread::scope(|scope| {
            let shard = &shard;
            let start = |replica: usize| {
                let model = model.clone();
                scope.spawn(move || B::on_threads(plan.threads, plan.world.size, || shard(replica, model)))
            };
            let threads: Vec<_> = (0..plan.world.size).map(start).collect();
            let mut shards = Vec::new();
            for (replica, thread) in threads.into_iter().enumerate() {
                let died = |_| Error::Training(format!("replica {replica} panicked during the evaluation"));
                shards.push(thread.join().map_err(died)??);
            }
            Ok(merged(&shards, <Classification as Task<B>>::ANSWERS))
        })
    }

    fn probabilities(&self, batch: &HostBatch, device: usize) -> Result<Vec<f32>> {
        let images = tensor(B::input(&batch.images, &B::open(device)?));
        let logits = self.0.valid().forward(images, &ForwardContext::evaluate());
        Ok(download(Vec::new(), vec![softmax(logits, 1).flatten(0, 1)]))
    }

    fn time_units(&self, task: &Arc<Classification>, plan: &Arc<Plan>, devices: &[usize]) -> Result<Timing> {
        time_units::<B, _>(task, plan, &self.0, devices)
    }
}
