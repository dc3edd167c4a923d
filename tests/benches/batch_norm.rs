//! Batch-norm in training mode, forward and backward, on the largest and the smallest maps of ResNet-18.

use std::hint::black_box;

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Distribution, Tensor};
use criterion::{Criterion, Throughput, criterion_group};
use kiln_ops::{Epilogue, batch_norm};

type Home = Autodiff<Flex>;

fn forward_and_backward(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("batch norm, forward and backward");
    for shape in [[32, 64, 32, 32], [32, 512, 4, 4]] {
        let device = Default::default();
        let noise = || Tensor::<Home, 4>::random(shape, Distribution::Normal(0.0, 1.0), &device);
        let (x, gradient) = (noise(), noise());
        group.throughput(Throughput::Elements(shape.iter().product::<usize>() as u64));
        group.bench_function(format!("{shape:?}"), |bencher| {
            bencher.iter(|| {
                let [weight, bias] = [1.0, 0.0].map(|value| Tensor::full([shape[1]], value, &device).require_grad());
                let done = batch_norm(x.clone().require_grad(), [weight, bias], 1e-5, None, Epilogue::Identity);
                black_box((done.output * gradient.clone()).sum().backward())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, forward_and_backward);
