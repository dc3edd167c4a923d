//! Every worker tells the others how long it works in a step, so that a slow one is found, and why it is slow.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use burn::backend::Autodiff;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use burn_dataset::Dataset;
use kiln_engine::nn::ForwardContext;
use kiln_engine::parallel::{
    DataParallel, HostBackend, Objective, Plan, Sampler, SamplerConfig, Split, StartingPoint, StepReport, World,
};
use kiln_ops::TrainBackend;

use crate::backends::devices;
use crate::reference::run::Recorder;

const REPLICAS: usize = 3;
const STEPS: usize = 12;
/// The replica that is slow.
const SLOW: usize = 1;
/// Long against a step of this network on a busy machine.
const PAUSE: Duration = Duration::from_millis(60);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Cause {
    Loader,
    Device,
}

/// Learns numbers from themselves. One replica is slow.
struct Numbers(Cause);

#[derive(Module, Debug)]
struct Line<B: Backend> {
    line: Linear<B>,
}

impl Dataset<usize> for Numbers {
    fn get(&self, index: usize) -> Option<usize> {
        if self.0 == Cause::Loader && index % REPLICAS == SLOW {
            sleep(PAUSE);
        }
        Some(index)
    }

    fn len(&self) -> usize {
        REPLICAS * STEPS
    }
}

impl Objective for Numbers {
    type Sample = usize;
    type Model<B: TrainBackend> = Line<B>;
    type Batch<B: TrainBackend> = Tensor<B, 2>;

    fn dataset(&self, _: Split) -> &dyn Dataset<usize> {
        self
    }

    fn batch<B: TrainBackend>(&self, numbers: Vec<usize>, device: &B::Device) -> Tensor<B, 2> {
        if self.0 == Cause::Device && numbers[0] % REPLICAS == SLOW {
            sleep(PAUSE);
        }
        let numbers: Vec<f32> = numbers.iter().map(|number| 0.01 * *number as f32).collect();
        let size = [numbers.len(), 1];
        Tensor::from_data(TensorData::new(numbers, size), device)
    }

    fn losses<B: TrainBackend>(&self, model: &Line<B>, x: Tensor<B, 2>, _: &ForwardContext<B>) -> Tensor<B, 1> {
        (model.line.forward(x.clone()) - x).square().flatten(0, 1)
    }
}

/// What the steps of `replicas` replicas report, of which one is slow by this cause.
fn steps<B: HostBackend>(replicas: usize, cause: Cause) -> Vec<StepReport> {
    let found = devices::<B>(replicas);
    let mut plan = Plan::new(World::new(replicas, found.clone()), [REPLICAS * STEPS, 1], 1, 1).unwrap();
    let in_order = SamplerConfig {
        len: REPLICAS * STEPS,
        world_size: replicas,
        batch_size: 1,
        accumulation_steps: 1,
        seed: 0,
        drop_last: false,
        shuffle: false,
        limit_micro_batches: 0,
        repeats: 1,
    };
    (plan.sampler, plan.limit_validation) = (Sampler::new(in_order).unwrap(), 1);
    plan.validation_samples = REPLICAS * STEPS;
    let recorder = Recorder::default();
    let (limit, start) = (Duration::from_secs(60), StartingPoint::default());
    let strategy =
        DataParallel::<B, _>::new(Arc::new(Numbers(cause)), Arc::new(plan), start, limit, Box::new(recorder.clone()));
    let line = Line::<Autodiff<B>> { line: LinearConfig::new(1, 1).init(&B::open(found[0]).unwrap()) };
    kiln_engine::train(line, strategy).unwrap();
    std::mem::take(&mut recorder.0.lock().unwrap().steps)
}

fn the_slow_one_is_found<B: HostBackend>(cause: Cause) {
    let steps = steps::<B>(REPLICAS, cause);
    assert_eq!(steps.len(), STEPS);
    let measured: Vec<_> = steps.iter().map(|step| &step.work).filter(|work| !work.is_empty()).collect();
    if !B::is_processor() {
        // A step is measured every ten seconds, perhaps none of so few.
        return;
    }
    // Of the first step, and of the last one, nobody is told.
    assert_eq!(measured.len(), STEPS - 2);
    let sum = |of: &dyn Fn(usize) -> f64| -> Vec<f64> { (0..REPLICAS).map(of).collect() };
    let seconds = sum(&|replica| measured.iter().map(|work| work[replica].seconds).sum());
    let loading = sum(&|replica| measured.iter().map(|work| work[replica].loading).sum());
    let excess = |of: &[f64]| of[SLOW] - of[0].max(of[2]);
    // Its loader works ahead while the others compute, so not every pause is a wait.
    assert!(excess(&seconds) > PAUSE.as_secs_f64(), "{seconds:?}");
    assert_eq!(excess(&loading) > 0.5 * excess(&seconds), cause == Cause::Loader, "{loading:?} of {seconds:?}");
    let known = devices::<B>(REPLICAS);
    let of = |replica: usize| known[World::new(REPLICAS, known.clone()).slot_of(replica)];
    assert!(measured.iter().all(|work| work.iter().enumerate().all(|(replica, work)| work.device == of(replica))));
}

fn alone_nobody_waits<B: HostBackend>() {
    assert!(steps::<B>(1, Cause::Device).iter().all(|step| step.work.is_empty()));
}

on_every_backend! {
    a_replica_whose_loader_is_slow_is_found => || the_slow_one_is_found::<TestBackend>(Cause::Loader);
    a_replica_whose_device_is_slow_is_found => || the_slow_one_is_found::<TestBackend>(Cause::Device);
    alone_nobody_waits_for_anybody => || alone_nobody_waits::<TestBackend>();
}
