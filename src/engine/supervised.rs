//! Runs Burn's learner with Kiln's strategy.

use std::sync::Arc;

use burn_train::logger::MetricLogger;
use burn_train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn_train::metric::{MetricDefinition, NumericEntry};
use burn_train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use burn_train::{SupervisedTraining, TrainingStrategy};
use kiln_system::Result;

use crate::parallel::{DataParallel, HostBackend, LoaderHandle, Task};

pub fn train<B: HostBackend, T: Task<B>>(model: T::Model, strategy: DataParallel<B, T>) -> Result<()> {
    let (learner, strategy) = (strategy.learner(model), Arc::new(strategy));
    let [train, validation] =
        [strategy.plan.sampler.len(), strategy.plan.validation_samples].map(|items| Arc::new(LoaderHandle { items }));
    // The directory is for Burn's own logs and checkpoints, which are off.
    let training = SupervisedTraining::new("", train, validation)
        .num_epochs(strategy.plan.epochs)
        .with_application_logger(None)
        .with_metric_logger(NoLog)
        .with_training_strategy(TrainingStrategy::Custom(strategy.clone()));
    drop(training.renderer(Silent).launch(learner));
    strategy.take_result()
}

/// Burn's own log files are replaced by the run's `metrics.jsonl` and `metrics.csv`.
struct NoLog;

impl MetricLogger for NoLog {
    fn log(&mut self, _update: MetricsUpdate, _epoch: usize, _split: &Split) {}
    fn read_numeric(&mut self, _: &str, _: usize, _: &Split) -> std::result::Result<Vec<NumericEntry>, String> {
        Ok(Vec::new())
    }
    fn log_metric_definition(&mut self, _definition: MetricDefinition) {}
    fn log_epoch_summary(&mut self, _summary: EpochSummary) {}
}

/// Shows nothing, since the strategy's observer shows the progress.
struct Silent;

impl MetricsRendererTraining for Silent {
    fn update_train(&mut self, _state: MetricState) {}
    fn update_valid(&mut self, _state: MetricState) {}
    fn render_train(&mut self, _item: TrainingProgress, _indicators: Vec<ProgressType>) {}
    fn render_valid(&mut self, _item: TrainingProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRendererEvaluation for Silent {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}
    fn render_test(&mut self, _item: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for Silent {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _definition: MetricDefinition) {}
}
