//! A small network of Burn's layers with synchronised batch-norm: `burn::nn::BatchNorm` is exchanged for Kiln's, which
//! takes its statistics over all replicas. It learns to tell four drawn patterns apart.
//!
//! `cargo run --release --example small_cnn`

use std::path::Path;

use burn::backend::Flex;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use burn_dataset::{Dataset, InMemDataset};
use kiln_engine::{BatchNorm, ForwardContext, HostBackend, Objective, Plan, Result, Resumed, Split, TrainBackend};
use kiln_engine::{World, cross_entropy, initialize, resumed, train};

const SIDE: usize = 12;

/// An image of stripes, and their direction.
fn drawing(index: usize) -> (Vec<f32>, i64) {
    let (label, shift) = (index % 4, index / 4 % 5);
    let phase = |y: usize, x: usize| [x, y, x + y, x + SIDE - y][label] + shift;
    let pixel = |place: usize| if phase(place / SIDE, place % SIDE) % 5 < 2 { 1.0 } else { -0.2 * (index % 7) as f32 };
    ((0..SIDE * SIDE).map(pixel).collect(), label as i64)
}

#[derive(Module, Debug)]
pub struct Network<B: Backend> {
    conv1: Conv2d<B>,
    norm1: BatchNorm<B>,
    conv2: Conv2d<B>,
    norm2: BatchNorm<B>,
    classifier: Linear<B>,
}

impl<B: Backend> Network<B> {
    fn new(device: &B::Device) -> Self {
        let conv = |inputs, outputs| Conv2dConfig::new([inputs, outputs], [3, 3]).with_bias(false).init(device);
        let (conv1, conv2, classifier) = (conv(1, 8), conv(8, 16), LinearConfig::new(16, 4).init(device));
        let [norm1, norm2] = [8, 16].map(|channels| BatchNorm::new(channels, false, device));
        Self { conv1, norm1, conv2, norm2, classifier }
    }
}

pub struct Drawings([InMemDataset<(Vec<f32>, i64)>; 2]);

impl Objective for Drawings {
    type Sample = (Vec<f32>, i64);
    type Model<B: TrainBackend> = Network<B>;
    type Batch<B: TrainBackend> = (Tensor<B, 4>, Tensor<B, 1, Int>);

    fn dataset(&self, split: Split) -> &dyn Dataset<Self::Sample> {
        &self.0[split as usize]
    }

    fn batch<B: TrainBackend>(&self, samples: Vec<Self::Sample>, device: &B::Device) -> Self::Batch<B> {
        let (images, labels): (Vec<Vec<f32>>, Vec<i64>) = samples.into_iter().unzip();
        let images = TensorData::new(images.concat(), [labels.len(), 1, SIDE, SIDE]);
        (Tensor::from_data(images, device), Tensor::from_data(&labels[..], device))
    }

    fn losses<B: TrainBackend>(
        &self,
        net: &Network<B>,
        (x, labels): Self::Batch<B>,
        context: &ForwardContext<B>,
    ) -> Tensor<B, 1> {
        let x = Relu.forward(net.norm1.forward(net.conv1.forward(x), context));
        let x = Relu.forward(net.norm2.forward(net.conv2.forward(x), context));
        let x = x.flatten::<3>(2, 3).mean_dim(2).flatten(1, 2);
        cross_entropy(net.classifier.forward(x), labels, 0.0)
    }
}

/// The network as it was saved last, and how it is trained: 16 images in each step, whatever the number of replicas.
pub fn experiment<B: HostBackend>(directory: &Path, world: World, steps: usize) -> Result<Resumed<B, Drawings>> {
    let batch = 16 / world.size;
    let drawings = |range: std::ops::Range<usize>| InMemDataset::new(range.map(drawing).collect());
    let plan = Plan { last_step: steps, ..Plan::new(world, [403, 80], batch, 6)? };
    let network = initialize(Network::new(&B::open(0)?), plan.seed)?;
    resumed(directory, Drawings([drawings(0..403), drawings(403..483)]), network, plan)
}

fn main() -> Result<()> {
    let (network, strategy) = experiment::<Flex>("runs/small_cnn".as_ref(), World::new(2, vec![0]), usize::MAX)?;
    train(network, strategy)
}
