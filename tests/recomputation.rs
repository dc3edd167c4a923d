//! Units that are computed again give the same numbers, and take less memory.

use std::sync::Arc;
use std::time::Duration;

use burn::backend::Autodiff;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::tanh;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use burn_dataset::{Dataset, InMemDataset};
use kiln_engine::nn::initialize;
use kiln_engine::parallel::{
    Activations, DataParallel, Evaluated, HostBackend, Passage, Passed, Plan, Probe, Shard, Split, StartingPoint, Task,
    Unit, World,
};
use kiln_engine::state::sha256;
use kiln_ops::Precision;
use kiln_system::Result;
use kiln_training::{ModelConfig, Stem};
use parking_lot::Mutex;

use crate::backends::computes_in;
use crate::reference::run::{Experiment, Recorder, hosted};
use crate::small::{narrow, train_with};
use crate::stages::{experiment, outcome, reports};
use crate::toy;

/// Numbers, states and observations of a training with and without the setting.
#[track_caller]
fn assert_same<B: HostBackend>(what: &str, model: &ModelConfig, experiment: &Experiment) {
    let trained = |grad_checkpointing| {
        let (mut experiment, probe) = (experiment.clone(), experiment.plan.probe.is_some().then(Probe::default));
        (experiment.plan.grad_checkpointing, experiment.plan.probe) = (grad_checkpointing, probe.clone());
        let recorded = train_with::<B>(model, experiment);
        let mut seen = probe.map(|probe| probe.take()).unwrap_or_default();
        seen.sort_by_key(|it| it.order());
        (reports(&recorded), sha256(&outcome(recorded)), seen)
    };
    let (kept, again) = (trained(false), trained(true));
    assert_eq!(again.0, kept.0, "{what}");
    assert_eq!(again.1, kept.1, "{what}");
    assert_eq!(again.2, kept.2, "{what}");
}

/// Three micro-batches, the last one uneven, on every placement.
fn no_bit_changes<B: HostBackend>() {
    let bottlenecks = ModelConfig { depth: 50, groups: 4, width_per_group: 16, ..narrow(Stem::Cifar) };
    for placement @ [replicas, stages, _] in [[1, 1, 1], [2, 1, 2], [2, 1, 1], [1, 2, 2], [2, 3, 1], [1, 10, 3]] {
        let what = format!("{replicas} replicas in {stages} stages");
        assert_same::<B>(&what, &narrow(Stem::Imagenet), &experiment(placement));
        if stages < 3 {
            assert_same::<B>(&format!("bottlenecks, {what}"), &bottlenecks, &experiment(placement));
        }
    }
}

/// Half types, statistics of each replica, stochastic depth, and what a probe sees.
fn no_bit_changes_with<B: HostBackend>() {
    for placement in [[2, 1, 2], [1, 3, 1]] {
        for precision in [Precision::Bf16, Precision::F16].into_iter().filter(|it| computes_in::<B>(*it)) {
            let mut experiment = experiment(placement);
            (experiment.plan.precision, experiment.task.drop_path) = (precision, 0.5);
            assert_same::<B>(&format!("{precision:?}"), &narrow(Stem::Cifar), &experiment);
        }
        let mut apart = experiment(placement);
        apart.plan.sync_bn = false;
        assert_same::<B>("statistics of each replica", &narrow(Stem::Cifar), &apart);
        let mut probed = experiment(placement);
        probed.plan.probe = Some(Probe::default());
        assert_same::<B>("observed", &narrow(Stem::Cifar), &probed);
    }
}

/// One layer in all three units, between layers of their own.
#[derive(Module, Debug)]
struct Chain<B: Backend> {
    own: Vec<Linear<B>>,
    common: Linear<B>,
}

impl<B: Backend> Chain<B> {
    fn through(&self, unit: usize, x: Tensor<B, 2>) -> Tensor<B, 2> {
        tanh(self.common.forward(tanh(self.own[unit].forward(x))))
    }
}

/// Learns to map points to zero, and keeps the gradients that it sees.
struct Mapping(InMemDataset<[f32; 4]>, Mutex<Vec<Vec<f32>>>);

impl<B: HostBackend> Task<B> for Mapping {
    type Model = Chain<Autodiff<B>>;
    type Item = [f32; 4];
    type Batch = Vec<f32>;
    type Input = Tensor<B, 2>;
    type Outputs = ();

    fn dataset(&self, _: Split) -> &dyn Dataset<[f32; 4]> {
        &self.0
    }

    fn prepare(&self, _: Split, items: Vec<[f32; 4]>, _: &Shard) -> Result<Vec<f32>> {
        Ok(items.concat())
    }

    fn upload(&self, values: Vec<f32>, device: &B::Device) -> Tensor<B, 2> {
        let points = values.len() / 4;
        Tensor::from_data(TensorData::new(values, [points, 4]), device)
    }

    fn units(&self) -> Vec<Unit> {
        (0..3).map(|unit| Unit::new([format!("own.{unit}")], 1.0)).collect()
    }

    fn forward(&self, model: &Self::Model, passage: Passage<Autodiff<B>, Tensor<B, 2>>) -> Passed<Autodiff<B>> {
        let x = passage.activations.map_or_else(|| Tensor::from_inner(passage.input), Activations::into_tensor);
        let x = passage.units.clone().fold(x, |x, unit| model.through(unit, x));
        if passage.units.end < 3 {
            return Passed::Activations(Activations::new(x));
        }
        Passed::Losses((x.powi_scalar(2).sum_dim(1).flatten(0, 1), ()))
    }

    fn evaluate(&self, model: &Evaluated<B, Self>, passage: Passage<B, Tensor<B, 2>>) -> Passed<B> {
        let x = (0..3).fold(passage.input, |x, unit| model.through(unit, x));
        Passed::Losses((x.powi_scalar(2).sum_dim(1).flatten(0, 1), ()))
    }

    fn sees_gradients(&self) -> bool {
        true
    }

    fn after_backward(&self, model: &Self::Model, (): &(), gradients: &GradientsParams) {
        struct Read<'a>(&'a GradientsParams, Vec<f32>);
        impl<B: AutodiffBackend> ModuleVisitor<B> for Read<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
                let gradient = self.0.get::<B::InnerBackend, D>(param.id).expect("every tensor has a gradient");
                self.1.extend(gradient.into_data().iter::<f32>());
            }
        }
        let mut read = Read(gradients, Vec::new());
        model.visit(&mut read);
        self.1.lock().push(read.1);
    }
}

fn one_weight_in_several_units<B: HostBackend>() {
    let device = B::open(0).unwrap();
    let linear = || LinearConfig::new(4, 4).init(&device);
    let model = initialize(Chain { own: (0..3).map(|_| linear()).collect(), common: linear() }, 0).unwrap();
    let trained = |grad_checkpointing| {
        let points = (0..24).map(|point| [0, 1, 2, 3].map(|axis| ((4 * point + axis) as f32 * 0.37).sin()));
        let task = Arc::new(Mapping(InMemDataset::new(points.collect()), Mutex::default()));
        let plan = Plan::new(World::new(1, vec![0]), [24, 24], 4, 2).unwrap();
        let plan = Arc::new(Plan { grad_checkpointing, ..hosted::<B>(plan) });
        let (recorder, limit) = (Recorder::default(), Duration::from_secs(60));
        let observer = Box::new(recorder.clone());
        let strategy = DataParallel::<B, _>::new(task.clone(), plan, StartingPoint::default(), limit, observer);
        kiln_engine::train(model.clone(), strategy).unwrap();
        let losses: Vec<f64> = recorder.0.lock().unwrap().steps.iter().map(|step| step.counts.loss).collect();
        (losses, std::mem::take(&mut *task.1.lock()))
    };
    let kept = trained(false);
    assert_eq!(kept.1.len(), 12);
    assert_eq!(trained(true), kept);
}

fn one_unit<B: HostBackend>() {
    let mut experiment = toy::plan_of(&toy::setup(1, 4, 0.1), toy::images(&[0, 1, 2, 3], 2));
    experiment.plan.grad_checkpointing = true;
    let toy = toy::Toy::<Autodiff<B>>::new(2, toy::Mishap::None, &B::open(0).unwrap());
    let error = toy::train::<B>(&toy, experiment, Duration::from_secs(30), Recorder::default()).unwrap_err();
    assert!(error.to_string().contains("train without --grad-checkpointing"), "{error}");
}

on_every_backend! {
    units_that_are_computed_again_change_no_bit => || no_bit_changes::<TestBackend>();
    nor_in_half_types_or_where_somebody_looks => || no_bit_changes_with::<TestBackend>();
    a_weight_of_several_units_has_its_whole_gradient => || one_weight_in_several_units::<TestBackend>();
    a_model_of_one_unit_is_refused => || one_unit::<TestBackend>();
}
