//! A whole training step of ResNet-18 on the default backend: forward, backward, SGD with momentum and weight decay.
//!
//! Batch 32 of 32x32 images, width 64, both stems.

use std::hint::black_box;
use std::time::Duration;

use burn::backend::{Autodiff, Flex};
use burn::optim::GradientsParams;
use burn::tensor::{Distribution, Int, Tensor};
use criterion::{BatchSize, Criterion, Throughput, criterion_group};
use kiln_engine::nn::{ForwardContext, TensorSet, flat, flat_gradients, initialize, with_flat};
use kiln_engine::optim::{OptimConfig, Optimizer, Parameter};
use kiln_training::{ModelConfig, ResNet, Stem};

type Home = Autodiff<Flex>;

const BATCH: usize = 32;

fn batch() -> (Tensor<Home, 4>, Tensor<Home, 1, Int>) {
    let device = Default::default();
    let images = Tensor::<Flex, 4>::random([BATCH, 3, 32, 32], Distribution::Normal(0.0, 1.0), &device);
    let labels: [i64; BATCH] = std::array::from_fn(|at| at as i64 % 10);
    let labels = Tensor::<Home, 1, Int>::from_ints(labels, &device);
    (Tensor::from_inner(images), labels)
}

fn step(
    model: ResNet<Home>,
    optimizer: &mut Optimizer<Flex>,
    (images, labels): (Tensor<Home, 4>, Tensor<Home, 1, Int>),
) -> ResNet<Home> {
    let losses = model.losses_of(model.forward(images, &ForwardContext::local()), labels, None);
    let gradients = GradientsParams::from_grads((losses.sum() / BATCH as f64).backward(), &model);
    let gradients = flat_gradients(&model, gradients).expect("every parameter has a gradient");
    let updated = optimizer.step(0.01, flat(&model, TensorSet::Trained), gradients);
    with_flat(model, TensorSet::Trained, updated)
}

fn training_step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("training step, batch 32");
    group.throughput(Throughput::Elements(BATCH as u64)).sample_size(15).measurement_time(Duration::from_secs(15));
    for stem in [Stem::Cifar, Stem::Imagenet] {
        let config = ModelConfig { stem, ..ModelConfig::default() };
        let model = initialize(ResNet::<Home>::new(&config, 10, 0.0, &Default::default()), 0).expect("the names fit");
        let tensors = flat(&model, TensorSet::Trained).len();
        let tensors =
            (0..tensors).map(|i| Parameter { name: i.to_string(), length: 0, vector: false, head: true }).collect();
        let mut optimizer = Optimizer::new(&OptimConfig::default(), tensors);
        let mut model = Some(model);
        group.bench_function(format!("{stem:?}"), |bencher| {
            bencher.iter_batched(
                batch,
                |batch| {
                    let before = model.take().expect("the last step left a model");
                    model = Some(black_box(step(before, &mut optimizer, batch)));
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, training_step);
