//! A model of your own on Kiln's engine: a small network learns on which of two spirals a point lies.
//!
//! `cargo run --release --example own_model -- DIRECTORY REPLICAS`. Stop it at any time and start it again: it goes on from
//! its last checkpoint, with the same bits. Here all replicas share one device; `World::new` takes more.

use std::path::Path;

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Tensor, TensorData, activation::tanh, backend::Backend};
use burn_dataset::{Dataset, InMemDataset};
use kiln::parallel::{Activations, Evaluated, HostBackend, Passage, Passed, Plan, Shard, Split, Task, Unit, World};
use kiln::trainer::{Resumed, learner, resumed};
use kiln::{error::Result, nn::initialize};

/// A point in the plane, and its arm: -1 or 1.
fn point(index: usize) -> [f32; 3] {
    let (angle, arm) = ((index as f32 * 0.618) % 6.0, if index.is_multiple_of(2) { 1.0 } else { -1.0 });
    [arm * angle * angle.cos() / 6.0, arm * angle * angle.sin() / 6.0, arm]
}

/// Two layers, which may be on two devices.
#[derive(Module, Debug)]
pub struct Network<B: Backend> {
    hidden: Linear<B>,
    output: Linear<B>,
}

impl<B: Backend> Network<B> {
    /// The squared errors of points `[n, 3]`, or what the second layer makes them from.
    fn pass(&self, Passage { units, input: x, activations, .. }: Passage<B, Tensor<B, 2>>) -> Passed<B> {
        let y =
            activations.map_or_else(|| tanh(self.hidden.forward(x.clone().narrow(1, 0, 2))), Activations::into_tensor);
        if !units.contains(&1) {
            return Passed::Activations(Activations::new(y));
        }
        Passed::Losses(((self.output.forward(y) - x.narrow(1, 2, 1)).square().flatten(0, 1), ()))
    }
}

/// The points to learn from, and those to measure on.
pub struct Spirals([InMemDataset<[f32; 3]>; 2]);

impl<B: HostBackend> Task<B> for Spirals {
    type Model = Network<Autodiff<B>>;
    type Item = [f32; 3];
    type Batch = Vec<[f32; 3]>;
    type Input = Tensor<B, 2>;
    type Outputs = ();

    fn dataset(&self, split: Split) -> &dyn Dataset<[f32; 3]> {
        &self.0[split as usize]
    }

    fn prepare(&self, _: Split, points: Vec<[f32; 3]>, _: &Shard) -> Result<Vec<[f32; 3]>> {
        Ok(points)
    }
    fn upload(&self, points: Vec<[f32; 3]>, device: &B::Device) -> Self::Input {
        Tensor::from_data(TensorData::new(points.concat(), [points.len(), 3]), device)
    }

    fn units(&self) -> Vec<Unit> {
        vec![Unit::new(["hidden"], 1.0), Unit::new(["output"], 1.0)]
    }

    fn forward(&self, model: &Self::Model, passage: Passage<Autodiff<B>, Self::Input>) -> Passed<Autodiff<B>> {
        model.pass(passage.map(Tensor::from_inner))
    }
    fn evaluate(&self, model: &Evaluated<B, Self>, passage: Passage<B, Self::Input>) -> Passed<B> {
        model.pass(passage)
    }
}

/// The network as it was saved last, and how it is trained: at most 20 epochs, 16 points for each replica and step.
pub fn experiment<B: HostBackend>(directory: &Path, world: World, steps: usize) -> Result<Resumed<B, Spirals>> {
    let points = |count| InMemDataset::new((0..count).map(point).collect());
    let plan = Plan { save_every_steps: 5, last_step: steps, ..Plan::new(world, [1003, 200], 16, 20)? };
    let device = B::open(0)?;
    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
    let network = initialize(Network { hidden: linear(2, 32), output: linear(32, 1) }, plan.seed)?;
    resumed(directory, Spirals([points(1003), points(200)]), network, plan)
}

fn main() -> Result<()> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "runs/own_model".into());
    let replicas = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(4);
    let (network, strategy) = experiment::<Flex>(directory.as_ref(), World::new(replicas, vec![0]), usize::MAX)?;
    learner::train(network, strategy)
}
