//! A small network learns on four replicas on which of two spirals a point lies. Stopped and started again, by
//! `cargo run --release --example own_model`, it continues from its last checkpoint, bit for bit.

use std::path::Path;

use burn::backend::Flex;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Tensor, TensorData, activation::tanh, backend::Backend};
use burn_dataset::{Dataset, InMemDataset};
use kiln_engine::{ForwardContext, HostBackend, Objective, Plan, Result, Resumed, Split, TrainBackend, World};
use kiln_engine::{initialize, resumed, train};

/// A point in the plane, and its arm: -1 or 1.
fn point(index: usize) -> [f32; 3] {
    let (angle, arm) = ((index as f32 * 0.618) % 6.0, [1.0, -1.0][index % 2]);
    [arm * angle * angle.cos() / 6.0, arm * angle * angle.sin() / 6.0, arm]
}

#[derive(Module, Debug)]
pub struct Network<B: Backend> {
    hidden: Linear<B>,
    output: Linear<B>,
}

/// The points to learn from, and those to measure on.
pub struct Spirals([InMemDataset<[f32; 3]>; 2]);

impl Objective for Spirals {
    type Sample = [f32; 3];
    type Model<B: TrainBackend> = Network<B>;
    type Batch<B: TrainBackend> = Tensor<B, 2>;

    fn dataset(&self, split: Split) -> &dyn Dataset<[f32; 3]> {
        &self.0[split as usize]
    }

    fn batch<B: TrainBackend>(&self, points: Vec<[f32; 3]>, device: &B::Device) -> Tensor<B, 2> {
        Tensor::from_data(TensorData::new(points.concat(), [points.len(), 3]), device)
    }

    fn losses<B: TrainBackend>(&self, net: &Network<B>, x: Tensor<B, 2>, _: &ForwardContext<B>) -> Tensor<B, 1> {
        let y = net.output.forward(tanh(net.hidden.forward(x.clone().narrow(1, 0, 2))));
        (y - x.narrow(1, 2, 1)).square().flatten(0, 1)
    }
}

/// The network as it was saved last, and how it is trained: 20 epochs, 16 points for each replica and step.
pub fn experiment<B: HostBackend>(directory: &Path, world: World, steps: usize) -> Result<Resumed<B, Spirals>> {
    let points = |count| InMemDataset::new((0..count).map(point).collect());
    let plan = Plan { save_every_steps: 5, last_step: steps, ..Plan::new(world, [1003, 200], 16, 20)? };
    let (first, second, device) = (LinearConfig::new(2, 32), LinearConfig::new(32, 1), B::open(0)?);
    let network = initialize(Network { hidden: first.init(&device), output: second.init(&device) }, plan.seed)?;
    resumed(directory, Spirals([points(1003), points(200)]), network, plan)
}

fn main() -> Result<()> {
    let (network, strategy) = experiment::<Flex>("runs/own_model".as_ref(), World::new(4, vec![0]), usize::MAX)?;
    train(network, strategy)
}
