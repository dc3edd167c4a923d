//! Runs Burn's learner with Kiln's strategy.

use std::sync::Arc;

use burn::data::dataloader::{DataLoader, DataLoaderIterator};
use burn::tensor::backend::Backend;
use burn_train::logger::InMemoryMetricLogger;
use burn_train::renderer::CliMetricsRenderer;
use burn_train::{SupervisedTraining, TrainingStrategy};
use kiln_system::Result;

use crate::parallel::{DataParallel, HostBackend, Task};

pub fn train<B: HostBackend, T: Task<B>>(model: T::Model, strategy: DataParallel<B, T>) -> Result<()> {
    let (learner, strategy) = (strategy.learner(model), Arc::new(strategy));
    // The directory is for Burn's own logs and checkpoints, which are off: the strategy's observer shows the progress,
    // and Burn's logger and renderer have nothing to say of a run whose strategy tells them of no item.
    let training = SupervisedTraining::new("", Arc::new(NoLoader), Arc::new(NoLoader))
        .num_epochs(strategy.plan.epochs)
        .with_application_logger(None)
        .with_metric_logger(InMemoryMetricLogger::new())
        .with_training_strategy(TrainingStrategy::Custom(strategy.clone()));
    drop(training.renderer(CliMetricsRenderer::new()).launch(learner));
    strategy.take_result()
}

/// What Burn's learner has in place of a loader, since replicas load their own shards.
struct NoLoader;

impl<B: Backend, O: 'static> DataLoader<B, O> for NoLoader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        unreachable!("replicas load their own shards")
    }

    fn num_items(&self) -> usize {
        0
    }

    fn to_device(&self, _device: &B::Device) -> Arc<dyn DataLoader<B, O>> {
        Arc::new(Self)
    }

    fn slice(&self, _start: usize, _end: usize) -> Arc<dyn DataLoader<B, O>> {
        Arc::new(Self)
    }
}
