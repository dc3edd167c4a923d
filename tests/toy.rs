//! A small network for tests of what surrounds a model: it trains in a moment, remembers every gradient, and misbehaves
//! when told to.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use burn::backend::Autodiff;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use burn_dataset::Dataset;
use kiln_data::{HostBatch, ImageSet, Normalization, Picture};
use kiln_engine::nn::{BatchNorm, Conv2d, ForwardContext, cross_entropy, initialize};
use kiln_engine::optim::{OptimConfig, Schedule};
use kiln_engine::parallel::{
    DataParallel, Evaluated, HostBackend, Observer, Passage, Passed, Processes, ReducePrecision, Shard, Split,
    StartingPoint, Task,
};
use kiln_ops::{HostOps, Precision, TrainBackend};
use kiln_system::Result;
use kiln_training::Classification;

use crate::reference::run::{Experiment, Setup, hosted, plan};

/// Height and width of the toy's images.
const SIDE: usize = 6;
/// Channels below the classifier.
const CHANNELS: usize = 4;

/// What goes wrong, in the shard that holds the image with this label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mishap {
    #[default]
    None,
    PanicInForward(i64),
    /// Only the first time, as a device that breaks does.
    PanicOnce(i64),
    PanicAfterTheFence(i64),
    LossIsNaN(i64),
    /// Waits until [`Toy::wake`].
    Sleep(i64),
}

/// One call of a training step.
#[derive(Debug, Clone)]
pub struct Call {
    /// The first pixels of the shard, bit for bit: they tell which shard it was.
    pub shard: Vec<u32>,
    /// One vector per parameter.
    pub gradients: Vec<Vec<f32>>,
}

/// What all copies of a toy share.
#[derive(Debug, Default)]
struct Shared {
    mishap: Mishap,
    calls: Mutex<Vec<Call>>,
    awake: Mutex<bool>,
    woken: Condvar,
}

/// `cat(conv, conv)`, batch-norm, then two branches that are added: the shapes that make Burn's autodiff graph race.
#[derive(Module, Debug)]
pub struct Toy<B: Backend> {
    conv1: Conv2d<B>,
    conv2: Conv2d<B>,
    conv3: Conv2d<B>,
    conv4: Conv2d<B>,
    bn1: BatchNorm<B>,
    bn2: BatchNorm<B>,
    fc: Linear<B>,
    #[module(skip)]
    shared: Arc<Shared>,
}

impl<B: HostOps> Toy<B> {
    pub fn new(classes: usize, mishap: Mishap, device: &B::Device) -> Self {
        let toy = Self {
            conv1: Conv2d::new([3, CHANNELS / 2], 3, 1, device),
            conv2: Conv2d::new([3, CHANNELS / 2], 3, 1, device),
            conv3: Conv2d::new([CHANNELS, CHANNELS], 3, 1, device),
            conv4: Conv2d::new([CHANNELS, CHANNELS], 1, 1, device),
            bn1: BatchNorm::new(CHANNELS, false, device),
            bn2: BatchNorm::new(CHANNELS, false, device),
            fc: LinearConfig::new(CHANNELS, classes).init(device),
            shared: Arc::new(Shared { mishap, ..Shared::default() }),
        };
        initialize(toy, 0).unwrap()
    }

    /// Every training step so far, of all copies, in no particular order.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().unwrap().clone()
    }

    /// How many copies of this toy are alive, this one included.
    pub fn copies(&self) -> usize {
        Arc::strong_count(&self.shared)
    }

    pub fn wake(&self) {
        *self.shared.awake.lock().unwrap() = true;
        self.shared.woken.notify_all();
    }

    fn is_awake(&self) -> bool {
        *self.shared.awake.lock().unwrap()
    }

    fn sleep(&self) {
        let awake = self.shared.awake.lock().unwrap();
        drop(self.shared.woken.wait_while(awake, |awake| !*awake).unwrap());
    }
}

impl<B: TrainBackend> Toy<B> {
    fn forward(&self, x: Tensor<B, 4>, context: &ForwardContext<B>) -> Tensor<B, 2> {
        let x = Tensor::cat(vec![self.conv1.forward(x.clone(), context), self.conv2.forward(x, context)], 1);
        let x = relu(self.bn1.forward(x, context));
        let x =
            relu(self.bn2.forward(self.conv3.forward(x.clone(), context), context) + self.conv4.forward(x, context));
        let [batch, channels, height, width] = x.dims();
        self.fc.forward(x.reshape([batch, channels, height * width]).mean_dim(2).reshape([batch, channels]))
    }
}

/// What toys are trained on: images of noise.
pub struct Drill(Classification);

/// What a forward pass of a toy has seen.
pub struct Seen {
    shard: Vec<u32>,
    is_own: bool,
    panics: bool,
}

impl<B: HostBackend> Task<B> for Drill {
    type Model = Toy<Autodiff<B>>;
    type Item = Picture;
    type Batch = (HostBatch, bool);
    type Input = (Tensor<B, 4>, Vec<u32>, bool);
    type Outputs = Option<Seen>;

    fn dataset(&self, split: Split) -> &dyn Dataset<Picture> {
        <Classification as Task<B>>::dataset(&self.0, split)
    }

    fn prepare(&self, split: Split, items: Vec<Picture>, shard: &Shard) -> Result<Self::Batch> {
        Ok((self.0.assemble(split, items, shard)?, shard.is_own))
    }

    fn upload(&self, (batch, is_own): Self::Batch, device: &B::Device) -> Self::Input {
        let pixels = TensorData::new(batch.images.on_host(), [batch.labels.len(), 3, SIDE, SIDE]);
        (Tensor::from_data(pixels, device), batch.labels, is_own)
    }

    fn forward(
        &self,
        toy: &Toy<Autodiff<B>>,
        Passage { input: (images, labels, is_own), context, .. }: Passage<Autodiff<B>, Self::Input>,
    ) -> Passed<Autodiff<B>, Option<Seen>> {
        let due = |label: i64| is_own && labels.contains(&(label as u32));
        match toy.shared.mishap {
            Mishap::PanicInForward(label) if due(label) => panic!("no memory left\nfor this"),
            Mishap::PanicOnce(label) if due(label) && !toy.is_awake() => {
                toy.wake();
                panic!("the device is gone")
            }
            Mishap::Sleep(label) if due(label) => toy.sleep(),
            _ => {}
        }
        let shard = images.clone().into_data().iter::<f32>().take(6).map(f32::to_bits).collect();
        let targets = targets(&labels, &images.device());
        let mut losses = cross_entropy(toy.forward(Tensor::from_inner(images), context), targets, 0.0);
        if let Mishap::LossIsNaN(label) = toy.shared.mishap
            && due(label)
        {
            losses = losses * f32::NAN;
        }
        let panics = matches!(toy.shared.mishap, Mishap::PanicAfterTheFence(label) if due(label));
        Passed::Losses((losses, Some(Seen { shard, is_own, panics })))
    }

    fn evaluate(
        &self,
        toy: &Evaluated<B, Self>,
        Passage { input: (images, labels, _), context, .. }: Passage<B, Self::Input>,
    ) -> Passed<B, Option<Seen>> {
        let targets = targets(&labels, &images.device());
        Passed::Losses((cross_entropy(toy.forward(images, context), targets, 0.0), None))
    }

    fn count(&self, seen: &Option<Seen>) -> Option<Tensor<B, 1>> {
        assert!(!seen.as_ref().is_some_and(|seen| seen.panics), "no memory left");
        None
    }

    fn sees_gradients(&self) -> bool {
        true
    }

    fn after_backward(&self, toy: &Toy<Autodiff<B>>, seen: &Option<Seen>, gradients: &GradientsParams) {
        let Some(seen) = seen.as_ref().filter(|seen| seen.is_own) else { return };
        let call = Call { shard: seen.shard.clone(), gradients: read_gradients(toy, gradients) };
        toy.shared.calls.lock().unwrap().push(call);
    }
}

fn targets<B: Backend>(labels: &[u32], device: &B::Device) -> Tensor<B, 1, Int> {
    let targets: Vec<i32> = labels.iter().map(|label| *label as i32).collect();
    Tensor::from_data(TensorData::new(targets, [labels.len()]), device)
}

/// The gradients of all parameters; none where the graph lost one.
fn read_gradients<B: AutodiffBackend>(toy: &Toy<B>, gradients: &GradientsParams) -> Vec<Vec<f32>> {
    struct Read<'a>(&'a GradientsParams, Vec<Vec<f32>>);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if param.is_require_grad() {
                let gradient = self.0.get::<B::InnerBackend, D>(param.id);
                self.1.push(gradient.map_or_else(Vec::new, |gradient| gradient.into_data().iter::<f32>().collect()));
            }
        }
    }
    let mut read = Read(gradients, Vec::new());
    toy.visit(&mut read);
    read.1
}

/// An image of noise for each id, with the label id modulo `classes`.
pub fn images(ids: &[usize], classes: usize) -> ImageSet {
    let noise = |id: usize| {
        let step = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        let stream = std::iter::successors(Some(id as u32 ^ 0x9e37_79b9), step);
        stream.skip(8).take(3 * SIDE * SIDE).map(|state| (state >> 24) as u8).collect::<Vec<_>>()
    };
    let labels = ids.iter().map(|id| (id % classes) as u32).collect();
    let names = (0..classes).map(|class| class.to_string()).collect();
    ImageSet::new(ids.iter().flat_map(|id| noise(*id)).collect(), labels, names, [SIDE, SIDE]).unwrap()
}

/// What [`Call::shard`] says of a shard that begins with the image of this id.
pub fn first_pixels(id: usize) -> Vec<u32> {
    let set = images(&[id], 1);
    let normal = |byte: &u8| ((f32::from(*byte) / 255.0 - 0.5) / 0.5).to_bits();
    set.image(0).unwrap()[..6].iter().map(normal).collect()
}

/// A learning rate that never changes, and no weight decay.
pub fn setup(world_size: usize, batch_size: usize, learning_rate: f64) -> Setup {
    let schedule = Schedule::constant(learning_rate, usize::MAX);
    Setup {
        world_size,
        devices: (0..world_size).collect(),
        batch_size,
        accumulation_steps: 1,
        precision: Precision::F32,
        reduce_precision: ReducePrecision::F32,
        sync_bn: true,
        optim: OptimConfig { weight_decay: 0.0, ..OptimConfig::default() },
        schedule,
    }
}

/// Pixels in `-1..=1`.
const NORMALIZATION: Normalization = Normalization { mean: [0.5; 3], std: [0.5; 3] };

/// One epoch over the images in their order, saved after every step.
pub fn plan_of(setup: &Setup, images: ImageSet) -> Experiment {
    let mut experiment = plan(setup, images, NORMALIZATION);
    experiment.plan.save_every_steps = 1;
    experiment
}

/// Trains a copy of `toy` and returns what became of it.
pub fn train<B: HostBackend>(
    toy: &Toy<Autodiff<B>>,
    experiment: Experiment,
    timeout: Duration,
    observer: impl Observer + 'static,
) -> Result<()> {
    train_with::<B>(toy, experiment, timeout, observer, None)
}

/// As [`train`], together with other processes.
pub fn train_with<B: HostBackend>(
    toy: &Toy<Autodiff<B>>,
    experiment: Experiment,
    timeout: Duration,
    observer: impl Observer + 'static,
    processes: Option<Processes>,
) -> Result<()> {
    let experiment = Experiment { plan: hosted::<B>(experiment.plan), ..experiment };
    fit(toy, strategy::<B>(&experiment, timeout, observer).with(processes))
}

/// The strategy of an experiment.
pub fn strategy<B: HostBackend>(
    experiment: &Experiment,
    timeout: Duration,
    observer: impl Observer + 'static,
) -> DataParallel<B, Drill> {
    strategy_from(experiment, StartingPoint::default(), timeout, observer)
}

/// As [`strategy`], from another position.
pub fn strategy_from<B: HostBackend>(
    experiment: &Experiment,
    start: StartingPoint,
    timeout: Duration,
    observer: impl Observer + 'static,
) -> DataParallel<B, Drill> {
    let Experiment { plan, task } = experiment.clone();
    DataParallel::new(Arc::new(Drill(task)), Arc::new(plan), start, timeout, Box::new(observer))
}

/// Trains a copy of `toy` by `strategy`.
pub fn fit<B: HostBackend>(toy: &Toy<Autodiff<B>>, strategy: DataParallel<B, Drill>) -> Result<()> {
    kiln_engine::train(toy.clone(), strategy)
}
