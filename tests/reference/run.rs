//! Runs the strategy on explicit batches and keeps all it reports.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::backend::Autodiff;
use kiln_data::{Augment, ImageSet, Normalization};
use kiln_engine::nn::load_state;
use kiln_engine::optim::{OptimConfig, Schedule};
use kiln_engine::parallel::{
    BnStatistics, DataParallel, EpochReport, HostBackend, Observer, Plan, Processes, ReducePrecision, StartingPoint,
    StepReport, TrainingState, World, Write,
};
use kiln_engine::parallel::{Sampler, SamplerConfig};
use kiln_engine::state::StateDict;
use kiln_engine::train;
use kiln_ops::Precision;
use kiln_system::Result;
use kiln_system::stop::Stop;
use kiln_training::Classification;
use kiln_training::{Architecture, ModelConfig, ResNet};

#[derive(Default)]
pub struct Recorded {
    pub steps: Vec<StepReport>,
    pub epochs: Vec<EpochReport>,
    pub states: Vec<TrainingState>,
}

#[derive(Clone, Default)]
pub struct Recorder(pub Arc<Mutex<Recorded>>);

impl Observer for Recorder {
    fn step(&mut self, report: &StepReport) -> Result<()> {
        self.0.lock().unwrap().steps.push(report.clone());
        Ok(())
    }
    fn epoch(&mut self, report: &EpochReport) -> Result<()> {
        self.0.lock().unwrap().epochs.push(report.clone());
        Ok(())
    }
    fn checkpoint(&mut self, state: TrainingState) -> Result<Write> {
        let recorded = self.0.clone();
        Ok(Box::new(move || {
            recorded.lock().unwrap().states.push(state);
            Ok(())
        }))
    }
}

/// What a test varies.
#[derive(Clone)]
pub struct Setup {
    pub world_size: usize,
    pub devices: Vec<usize>,
    pub batch_size: usize,
    pub accumulation_steps: usize,
    pub precision: Precision,
    pub reduce_precision: ReducePrecision,
    pub sync_bn: bool,
    pub optim: OptimConfig,
    pub schedule: Schedule,
}

/// What is trained on, and how.
#[derive(Clone)]
pub struct Experiment {
    pub plan: Plan,
    pub task: Classification,
}

impl Experiment {
    /// Measured on `images`, on all of them.
    pub fn validated_on(mut self, images: ImageSet) -> Self {
        (self.plan.validation_samples, self.plan.limit_validation) = (images.len(), 0);
        self.task.validation = Arc::new(images);
        self
    }
}

/// One epoch over `images` in their order.
pub fn plan(setup: &Setup, images: ImageSet, normalization: Normalization) -> Experiment {
    let sampler = Sampler::new(SamplerConfig {
        len: images.len(),
        world_size: setup.world_size,
        batch_size: setup.batch_size,
        accumulation_steps: setup.accumulation_steps,
        seed: 0,
        drop_last: false,
        shuffle: false,
        limit_micro_batches: 0,
        repeats: 1,
    })
    .unwrap();
    let images = Arc::new(images);
    let plain = Augment::plain(normalization);
    let plan = Plan {
        world: World::new(setup.world_size, setup.devices.clone()),
        sync_bn: setup.sync_bn,
        bn_statistics: BnStatistics::First,
        precision: setup.precision,
        reduce_precision: setup.reduce_precision,
        batch_size: setup.batch_size,
        epochs: 1,
        last_step: sampler.steps_per_epoch(),
        sampler,
        validation_samples: images.len(),
        limit_validation: 1,
        schedule: setup.schedule.clone(),
        optim: setup.optim.clone(),
        seed: 0,
        save_every_steps: 0,
        save_every_epochs: 1,
        split_points: Vec::new(),
        shard_optimizer: false,
        grad_checkpointing: false,
        recorded: kiln_engine::parallel::Recorded::No,
        roll_back: false,
        check_every: 1,
        early_stopping: 0,
        keeps_many: false,
        report_samples: true,
        probe: None,
        threads: 2,
        stop: Stop::new(),
    };
    let (train, validation) = (images.clone(), images);
    Experiment {
        plan,
        task: Classification {
            drop_path: 0.0,
            train,
            validation,
            augment: plain.clone(),
            mixing: None,
            plain,
            seed: 0,
            architecture: Architecture::RESNET18,
        },
    }
}

/// `plan` on those of its devices that `B` has on this machine: the same experiment.
pub fn hosted<B: HostBackend>(plan: Plan) -> Plan {
    let world = &plan.world;
    let there: Vec<_> = world.devices.iter().copied().filter(|index| B::open(*index).is_ok()).collect();
    if there == world.devices {
        return plan;
    }
    assert_eq!(world.processes(), 1, "processes share a processor");
    Plan { world: World::staged([world.size, world.stages], 0, vec![there.len()], there), ..plan }
}

/// Trains the network of `config`, which starts from `weights`.
pub fn run<B: HostBackend>(
    experiment: Experiment,
    config: &ModelConfig,
    classes: usize,
    weights: &StateDict,
) -> Recorded {
    run_from::<B>(experiment, config, classes, weights, StartingPoint::default()).unwrap()
}

/// As [`run`], from another position.
pub fn run_from<B: HostBackend>(
    experiment: Experiment,
    config: &ModelConfig,
    classes: usize,
    weights: &StateDict,
    start: StartingPoint,
) -> Result<Recorded> {
    run_with::<B>(experiment, config, classes, weights, start, None)
}

/// As [`run_from`], together with other processes.
pub fn run_with<B: HostBackend>(
    experiment: Experiment,
    config: &ModelConfig,
    classes: usize,
    weights: &StateDict,
    start: StartingPoint,
    processes: Option<Processes>,
) -> Result<Recorded> {
    let Experiment { plan, mut task } = experiment;
    task.architecture = config.architecture();
    let (plan, device) = (hosted::<B>(plan), B::open(0).unwrap());
    let model = ResNet::<Autodiff<B>>::new(config, classes, plan.optim.label_smoothing, &device);
    let model = load_state(model, weights, "the fixture").unwrap();
    let recorder = Recorder::default();
    let timeout = Duration::from_secs(60);
    let strategy =
        DataParallel::<B, _>::new(Arc::new(task), Arc::new(plan), start, timeout, Box::new(recorder.clone()));
    let strategy = strategy.with(processes);
    train(model, strategy)?;
    Ok(std::mem::take(&mut recorder.0.lock().unwrap()))
}
