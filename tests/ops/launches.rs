//! How many kernels batch-norm, the update and a step on CubeCL launch, by wgpu's own log: below CubeCL, so that it
//! does not matter who asks. A device spends microseconds on each, however small it is.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use burn::backend::{Autodiff, Wgpu};
use burn::data::dataset::{Dataset, InMemDataset};
use burn::module::Module;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use kiln_engine::nn::Conv2d;
use kiln_engine::optim::{OptimConfig, Optimizer, Parameter};
use kiln_engine::parallel::{DataParallel, Observer, StartingPoint, StepReport, TrainingState, Write};
use kiln_engine::{BatchNorm, ForwardContext, HostBackend, Objective, Plan, Result, Split, TrainBackend, World};
use kiln_ops::statistics::{Combine, Direction, Payload, StatisticsGroup, Synchronized};
use kiln_ops::{BatchNormOps, ConvOps, Epilogue, Precision, ReluState};
use log::{LevelFilter, Log, Metadata, Record};

use super::{noise, rounded, tensor, to_vec};
use crate::backends::computes_in;

type Device = Wgpu<f32, i32>;

/// Counts the launches that wgpu tells of.
struct Listener(AtomicUsize);

static LISTENER: Listener = Listener(AtomicUsize::new(0));

impl Log for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("wgpu_core")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) && record.args().to_string().starts_with("ComputePass::dispatch") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

/// The result of `work`, and its launches.
fn counted<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let device = Device::open(0).unwrap();
    let so_far = || {
        Device::sync(&device).unwrap();
        LISTENER.0.load(Ordering::Relaxed)
    };
    let before = so_far();
    let done = work();
    (done, so_far() - before)
}

/// A group of one, whose statistics are handed over on the device.
struct Alone;

impl StatisticsGroup for Alone {
    fn gather(&self, _: usize, _: Direction, _: Vec<f64>, _: Combine) -> Arc<Vec<Vec<f64>>> {
        unreachable!("statistics stay on the device")
    }

    fn meet(
        &self,
        _: usize,
        _: Direction,
        part: Payload,
        combine: &dyn Fn(Vec<Payload>) -> Payload,
    ) -> Option<Payload> {
        Some(combine(vec![part]))
    }
}

/// Launches of the forward and of the backward pass of a batch-norm.
fn norm(precision: Precision, shortcut: Option<bool>, is_shared: bool) -> [usize; 2] {
    // As a convolution leaves them.
    let images = |seed| tensor::<Device, 4>(&noise(4 * 64 * 16, seed), [4, 8, 8, 16]).cast(precision.dtype());
    let [x, other, gradient] = [1, 2, 3].map(|seed| images(seed).permute([0, 3, 1, 2]).into_primitive().tensor());
    let [weight, bias] = [4, 5].map(|seed| tensor::<Device, 1>(&noise(16, seed), [16]).into_primitive().tensor());
    let group = Synchronized { group: Arc::new(Alone), layer: 0, samples: [4].into(), replica: 0 };
    let epilogue = match shortcut {
        None => Epilogue::Identity,
        Some(false) => Epilogue::Relu,
        Some(true) => Epilogue::AddRelu(other),
    };
    let sync = is_shared.then_some(&group);
    let forward = || Device::bn_train(x.clone(), weight.clone(), bias.clone(), 1e-5, sync, epilogue.clone());
    let (done, launches) = counted(forward);
    let mask = (shortcut == Some(false)).then(|| [done.scale.unwrap(), bias.clone()]);
    let relu = shortcut.map(|_| ReluState { output: done.output, mask });
    let statistics = [done.mean, done.inv_std];
    let share = 1.0 / done.count;
    let backward =
        || Device::bn_gradients(gradient, x.clone(), weight.clone(), statistics, relu.as_ref(), |own| (own, share));
    [launches, counted(backward).1]
}

/// Alone and in a group, without anything behind it, with ReLU, and with a shortcut and ReLU.
fn norms(precision: Precision) -> [[[usize; 2]; 3]; 2] {
    [false, true].map(|is_shared| [None, Some(false), Some(true)].map(|shortcut| norm(precision, shortcut, is_shared)))
}

/// Launches for the weights of so many convolutions in half precision, one by one and all at once.
fn weights(count: usize) -> [usize; 2] {
    let weight = |place: usize| {
        let weight = tensor::<Device, 4>(&noise((8 + place) * 36, place as u64), [4, 8 + place, 3, 3]);
        // Of every layout in memory.
        if place.is_multiple_of(2) { weight.swap_dims(0, 1) } else { weight }
    };
    let weights: Vec<_> = (0..count).map(|place| weight(place).into_primitive().tensor()).collect();
    let x = tensor::<Device, 4>(&noise(4, 2), [1, 4, 1, 1]).cast(DType::F16).into_primitive().tensor();
    let sliding = Conv2d::<Device>::new([4, 8], 3, 1, &Device::open(0).unwrap()).sliding;
    let one_by_one = || weights.iter().map(|it| Device::conv_weight(it.clone(), &x, sliding)).collect::<Vec<_>>();
    let (apart, one_by_one) = counted(one_by_one);
    let (together, at_once) = counted(|| Device::conv_weights(|| weights.clone(), DType::F16).unwrap());
    let values = |it| to_vec(Tensor::<Device, 4>::from_primitive(TensorPrimitive::Float(it)));
    for ((weight, apart), together) in weights.into_iter().zip(apart).zip(together) {
        let expected = rounded(values(weight), Precision::F16);
        assert_eq!([values(apart), values(together)], [expected.clone(), expected]);
    }
    [one_by_one, at_once]
}

/// Launches for the gradients of so many parameters of two kinds, and for their update.
fn update(count: usize) -> [usize; 2] {
    let lengths: Vec<usize> = (0..count).map(|place| if place % 2 == 0 { 4 + place } else { 100 + place }).collect();
    let parameter = |(place, length): (usize, &usize)| {
        let (name, vector) = (place.to_string(), place % 2 == 0);
        Parameter { name, length: *length, vector, head: false }
    };
    let parameters = lengths.iter().enumerate().map(parameter).collect();
    let mut optimizer = Optimizer::<Device>::new(&OptimConfig::default(), parameters);
    let mut params: Vec<_> = lengths.iter().map(|length| tensor::<Device, 1>(&noise(*length, 3), [*length])).collect();
    let mut launches = [0; 2];
    // The first one packs the parameters, too, and has no momentum yet.
    for _ in 0..2 {
        let gradients: Vec<_> = lengths.iter().map(|length| tensor(&noise(*length, 4), [*length])).collect();
        let (packed, gathered) = counted(|| optimizer.arenas().pack(gradients));
        let unpacked = optimizer.arenas().unpack(packed.clone());
        optimizer.prepare(packed);
        let (updated, launched) = counted(|| optimizer.step(0.1, params, unpacked));
        (params, launches) = (updated, [gathered, launched]);
    }
    launches
}

/// Blocks of a convolution and a batch-norm.
#[derive(Module, Debug)]
pub struct Network<B: Backend> {
    convolutions: Vec<Conv2d<B>>,
    norms: Vec<BatchNorm<B>>,
}

struct Images([InMemDataset<Vec<f32>>; 2]);

const CHANNELS: usize = 8;

impl Objective for Images {
    type Sample = Vec<f32>;
    type Model<B: TrainBackend> = Network<B>;
    type Batch<B: TrainBackend> = Tensor<B, 4>;

    fn dataset(&self, split: Split) -> &dyn Dataset<Vec<f32>> {
        &self.0[split as usize]
    }

    fn batch<B: TrainBackend>(&self, samples: Vec<Vec<f32>>, device: &B::Device) -> Tensor<B, 4> {
        let shape = [samples.len(), CHANNELS, 4, 4];
        Tensor::<B, 1>::from_floats(&samples.concat()[..], device).reshape(shape)
    }

    fn losses<B: TrainBackend>(&self, net: &Network<B>, x: Tensor<B, 4>, context: &ForwardContext<B>) -> Tensor<B, 1> {
        let layers = net.convolutions.iter().zip(&net.norms);
        let block =
            |x, (conv, norm): (&Conv2d<B>, &BatchNorm<B>)| conv.forward_normalized(x, norm, Epilogue::Relu, context);
        layers.fold(x, block).flatten::<2>(1, 3).mean_dim(1).flatten(0, 1)
    }
}

#[derive(Clone)]
struct Nobody;

impl Observer for Nobody {
    fn step(&mut self, _: &StepReport) -> Result<()> {
        Ok(())
    }

    fn checkpoint(&mut self, _: TrainingState) -> Result<Write> {
        Ok(Box::new(|| Ok(())))
    }
}

/// Launches of so many steps of a network with so many blocks, and of what begins and ends a run.
fn run(blocks: usize, steps: usize) -> usize {
    let device = Device::open(0).unwrap();
    let convolution = |_| Conv2d::new([CHANNELS; 2], 3, 1, &device);
    let norm = |_| BatchNorm::new(CHANNELS, false, &device);
    let (convolutions, norms) = ((0..blocks).map(convolution).collect(), (0..blocks).map(norm).collect());
    let network = kiln_engine::initialize(Network::<Autodiff<Device>> { convolutions, norms }, 0).unwrap();
    let counts = [4 * steps, 4];
    let image = |seed| noise(CHANNELS * 16, seed as u64);
    let images = counts.map(|count| InMemDataset::new((0..count).map(image).collect()));
    let mut plan = Plan::new(World::new(1, vec![0]), counts, 4, 1).unwrap();
    plan.check_every = 0;
    let (start, limit) = (StartingPoint::default(), Duration::from_secs(60));
    let strategy =
        DataParallel::<Device, _>::new(Arc::new(Images(images)), Arc::new(plan), start, limit, Box::new(Nobody));
    counted(|| kiln_engine::train(network, strategy).unwrap()).1
}

/// Launches of a step with so many blocks.
fn step(blocks: usize) -> usize {
    // The first run compiles and checks kernels.
    let [_, short, long] = [2, 2, 5].map(|steps| run(blocks, steps));
    assert_eq!((long - short) % 3, 0, "the same in each step: {short}, {long}");
    (long - short) / 3
}

#[test]
#[ignore = "not a test: the process whose launches are counted"]
fn the_process_whose_launches_are_counted() {
    let Ok(case) = std::env::var(COUNTED) else { return };
    // Before anything else uses the device.
    Device::open(0).unwrap();
    log::set_logger(&LISTENER).unwrap();
    log::set_max_level(LevelFilter::Trace);
    let found = match case.as_str() {
        "f32" => format!("{:?}", norms(Precision::F32)),
        "f16" => format!("{:?}", norms(Precision::F16)),
        "weights" => format!("{:?}", COUNTS.map(weights)),
        "update" => format!("{:?}", COUNTS.map(update)),
        _ => {
            let [less, more] = [1, 2].map(step);
            format!("{}", more - less)
        }
    };
    println!("\n{COUNTED}{found}");
}

/// Tensors in a model.
const COUNTS: [usize; 3] = [4, 20, 50];

/// Names the case to a process, and begins the line in which it answers.
const COUNTED: &str = "KILN_TEST_LAUNCHES";

/// What a process of its own counts.
fn found(case: &str) -> String {
    let name = concat!(module_path!(), "::the_process_whose_launches_are_counted").split_once("::").unwrap().1;
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args([name, "--exact", "--ignored", "--nocapture"]).stdin(Stdio::null()).env(COUNTED, case);
    let output = process.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said.lines().find_map(|line| line.strip_prefix(COUNTED)).unwrap().to_owned()
}

fn batch_norm_takes_three_kernels_each_way() {
    // The factors follow from the statistics of all replicas.
    let expected = format!("{:?}", [[[3, 3]; 3], [[4, 3]; 3]]);
    assert_eq!(found("f32"), expected);
    if computes_in::<Device>(Precision::F16) {
        assert_eq!(found("f16"), expected);
    }
}

fn an_update_takes_few_kernels() {
    // One copies 24 tensors at most.
    if computes_in::<Device>(Precision::F16) {
        assert_eq!(found("weights"), "[[4, 1], [20, 1], [50, 3]]");
    }
    assert_eq!(found("update"), "[[2, 2], [2, 2], [4, 2]]");
}

/// Three for batch-norm in each direction and one for each product of the convolution, none for its weight; without
/// matrix units four copies and a flip for the gradients of the convolution.
fn a_block_adds_no_kernel_for_its_weight() {
    assert_eq!(found("step"), "14");
}

on_backend! {
    "wgpu" wgpu Device:
    batch_norm_is_three_kernels_each_way => batch_norm_takes_three_kernels_each_way;
    weights_and_their_update_take_few_kernels_for_any_number_of_tensors => an_update_takes_few_kernels;
    a_block_of_a_network_adds_no_kernel_for_its_weight => a_block_adds_no_kernel_for_its_weight;
}
