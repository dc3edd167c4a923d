//! Steps in place: with LibTorch, weights, what the optimizer remembers and running statistics stay where they are.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use burn::backend::{Autodiff, LibTorch};
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use burn_dataset::{Dataset, InMemDataset};
use kiln_engine::nn::{BatchNorm, Conv2d, ForwardContext, initialize};
use kiln_engine::optim::{AveragedSteps, OptimConfig, Optimizer, OptimizerKind, Parameter, WeightAverage};
use kiln_engine::parallel::{DataParallel, HostBackend, Objective, Plan, Split, StartingPoint, World};
use kiln_ops::{Precision, TrainBackend, primitive};
use parking_lot::Mutex;

use crate::noise::noise;
use crate::optim::KINDS;
use crate::reference::run::Recorder;

type Torch = LibTorch<f32>;

#[derive(Module, Debug)]
struct Network<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    linear: Linear<B>,
}

/// Where the tensors of a model are, and what they hold.
#[derive(Debug, Clone, PartialEq, Default)]
struct Place {
    addresses: Vec<usize>,
    values: Vec<f32>,
}

impl<B: Backend> ModuleVisitor<B> for Place {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let values = Box::new(param.val()) as Box<dyn Any>;
        // An evaluation has no graph, and is not looked at.
        if let Ok(values) = values.downcast::<Tensor<Autodiff<Torch>, D>>() {
            let values = values.inner();
            self.values.extend(values.to_data().iter::<f32>());
            self.addresses.push(primitive(values).tensor.data_ptr() as usize);
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        let count = Box::new(param.val()) as Box<dyn Any>;
        if let Ok(count) = count.downcast::<Tensor<Autodiff<Torch>, D, Int>>() {
            self.values.extend(count.to_data().iter::<f32>());
            self.addresses.push(count.into_primitive().tensor.data_ptr() as usize);
        }
    }
}

/// Learns to map images to zero; notes at every forward pass of a replica, which is a thread, where its model is.
struct Watched(InMemDataset<Vec<f32>>, Arc<Mutex<HashMap<ThreadId, Vec<Place>>>>);

impl Objective for Watched {
    type Sample = Vec<f32>;
    type Model<B: TrainBackend> = Network<B>;
    type Batch<B: TrainBackend> = Tensor<B, 4>;

    fn dataset(&self, _: Split) -> &dyn Dataset<Vec<f32>> {
        &self.0
    }

    fn batch<B: TrainBackend>(&self, samples: Vec<Vec<f32>>, device: &B::Device) -> Tensor<B, 4> {
        let count = samples.len();
        Tensor::from_data(TensorData::new(samples.concat(), [count, 3, 4, 4]), device)
    }

    fn losses<B: TrainBackend>(&self, net: &Network<B>, x: Tensor<B, 4>, context: &ForwardContext<B>) -> Tensor<B, 1> {
        let mut place = Place::default();
        net.visit(&mut place);
        if !place.addresses.is_empty() {
            self.1.lock().entry(std::thread::current().id()).or_default().push(place);
        }
        let x = net.norm.forward(net.conv.forward(x, context), context);
        let x: Tensor<B, 2> = net.linear.forward(x.flatten::<3>(2, 3).mean_dim(2).flatten(1, 2));
        (x - 1.0).powi_scalar(2).sum_dim(1).flatten(0, 1)
    }
}

/// The places of each replica's model before each of six steps.
fn places(replicas: usize, change: impl FnOnce(&mut Plan)) -> Vec<Vec<Place>> {
    let device = <Torch as HostBackend>::open(0).unwrap();
    let network = Network {
        conv: Conv2d::new([3, 5], 3, 1, &device),
        norm: BatchNorm::new(5, false, &device),
        linear: LinearConfig::new(5, 2).init(&device),
    };
    let images = (0..24).map(|image| noise(48, image)).collect();
    let seen = Arc::new(Mutex::default());
    let mut plan = Plan::new(World::new(replicas, vec![0]), [24, 24], 8 / replicas, 2).unwrap();
    change(&mut plan);
    let (task, limit) = (Arc::new(Watched(InMemDataset::new(images), seen.clone())), Duration::from_secs(60));
    let observer = Box::new(Recorder::default());
    let strategy = DataParallel::<Torch, _>::new(task, Arc::new(plan), StartingPoint::default(), limit, observer);
    kiln_engine::train(initialize(network, 0).unwrap(), strategy).unwrap();
    let mut seen = std::mem::take(&mut *seen.lock());
    seen.drain().map(|(_, places)| places).collect()
}

/// Between the first of these steps and the last.
#[track_caller]
fn assert_in_place(what: &str, replicas: &[Vec<Place>], first: usize) {
    for places in replicas {
        assert_eq!(places.len(), 6, "{what}");
        assert!(places.windows(2).all(|of| of[0].values != of[1].values), "{what}: every step changes the model");
        let moved = places[first..].iter().position(|place| place.addresses != places[first].addresses);
        assert_eq!(moved, None, "{what}: tensors move");
    }
}

#[test]
fn weights_and_statistics_stay_where_they_are() {
    if !crate::backends::is_there::<Torch>("tch") {
        return;
    }
    for optimizer in KINDS {
        let config = OptimConfig { optimizer, weight_decay: 0.1, clip_grad_norm: 0.5, ..OptimConfig::default() };
        assert_in_place(&format!("{optimizer:?}"), &places(1, |plan| plan.optim = config), 0);
    }
    let averaged = OptimConfig { ema_decay: 0.9, learning_rate: 0.01, ..OptimConfig::default() };
    assert_in_place("averaged", &places(1, |plan| plan.optim = averaged), 0);
    assert_in_place("in bf16", &places(1, |plan| plan.precision = Precision::Bf16), 0);
    // The first step replaces what another replica updates by that one's tensors.
    let replicas = places(2, |plan| plan.sync_bn = false);
    assert_eq!(replicas.len(), 2);
    assert_in_place("two replicas", &replicas, 1);
}

fn parameter((place, length): (usize, usize)) -> Parameter {
    Parameter { name: format!("{place}"), length, vector: place == 1, head: false }
}

fn tensors<B: HostBackend>(seed: u64) -> Vec<Tensor<B, 1>> {
    let device = B::open(0).unwrap();
    let tensor = |length: usize| Tensor::from_data(TensorData::new(noise(length, seed), [length]), &device);
    [300, 7].map(tensor).to_vec()
}

fn numbers<B: Backend>(tensors: &[Tensor<B, 1>]) -> Vec<f32> {
    tensors.iter().flat_map(|values| values.to_data().iter::<f32>().collect::<Vec<_>>()).collect()
}

fn addresses(tensors: &[Tensor<Torch, 1>]) -> Vec<usize> {
    tensors.iter().map(|values| primitive(values.clone()).tensor.data_ptr() as usize).collect()
}

fn rule(optimizer: OptimizerKind) -> OptimConfig {
    OptimConfig { optimizer, momentum: 0.9, weight_decay: 0.1, ..OptimConfig::default() }
}

/// Whoever else holds a weight sees the new one; gradients stay as they were.
#[test]
fn what_an_optimizer_remembers_stays_where_it_is() {
    if !crate::backends::is_there::<Torch>("tch") {
        return;
    }
    for kind in KINDS {
        let mut optimizer =
            Optimizer::<Torch>::new(&rule(kind), [300, 7].into_iter().enumerate().map(parameter).collect());
        let (held, mut all) = (tensors::<Torch>(1), Vec::new());
        let mut params = held.clone();
        for step in 0..6 {
            let gradients = tensors::<Torch>(2 + step);
            params = optimizer.step(0.1, params, gradients.clone());
            assert_eq!(numbers(&gradients), numbers(&tensors::<Torch>(2 + step)), "{kind:?}: a gradient");
            let memory: Vec<_> = optimizer.memory().cloned().collect();
            all.push([addresses(&params), addresses(&memory)]);
        }
        assert!(!all[0][1].is_empty() && all.iter().all(|of| *of == all[0]), "{kind:?}: {all:x?}");
        assert_eq!(all[0][0], addresses(&held), "{kind:?}");
        assert_eq!(numbers(&params), numbers(&held), "{kind:?}");
    }
}

/// Flex writes to new memory, by the same loops for SGD and Adam.
#[cfg(feature = "flex")]
#[test]
fn a_step_in_place_has_the_numbers_of_one_that_is_not() {
    fn trained<B: HostBackend>(kind: OptimizerKind) -> Vec<f32> {
        let mut optimizer = Optimizer::<B>::new(&rule(kind), [300, 7].into_iter().enumerate().map(parameter).collect());
        numbers(&(0..6).fold(tensors::<B>(1), |params, step| optimizer.step(0.1, params, tensors::<B>(2 + step))))
    }
    if !crate::backends::is_there::<Torch>("tch") {
        return;
    }
    for kind in KINDS {
        let (ours, theirs) = (trained::<Torch>(kind), trained::<burn::backend::Flex>(kind));
        if matches!(kind, OptimizerKind::Sgd | OptimizerKind::Adam | OptimizerKind::AdamW) {
            assert_eq!(ours, theirs, "{kind:?}");
        }
        let off = ours.iter().zip(&theirs).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(off < 4e-6, "{kind:?}: {off:e}");
    }
}

#[test]
fn an_average_keeps_the_weights_it_has_copied() {
    if !crate::backends::is_there::<Torch>("tch") {
        return;
    }
    let mut optimizer =
        Optimizer::<Torch>::new(&rule(OptimizerKind::Sgd), [300, 7].into_iter().enumerate().map(parameter).collect());
    let mut params = tensors::<Torch>(1);
    let before = numbers(&params);
    let steps = AveragedSteps { every: 1, per_epoch: 1, copied_until: Some(1) };
    let mut average = WeightAverage::new(0.9, steps, params.clone());
    params = optimizer.step(0.1, params, tensors::<Torch>(2));
    assert_eq!(numbers(&average.values), before, "those at the start");
    let first = numbers(&params);
    average.update(0, || params.clone());
    optimizer.step(0.1, params, tensors::<Torch>(3));
    assert_eq!(numbers(&average.values), first, "those of the first step");
}
