//! A model of your own on Kiln's engine: a small network learns on which of two spirals a point lies.
//!
//! `cargo run --release --example own_model -- DIRECTORY [REPLICAS [STEPS]]`. Stop it at any time and start it again: it
//! goes on from its last checkpoint, with the same bits. Here all replicas share one device; `World::new` takes more.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use burn_dataset::{Dataset, InMemDataset};
use kiln::error::{Error, Result};
use kiln::nn::{ForwardContext, initialize};
use kiln::parallel::{DataParallel, Evaluated, HostBackend, Plan, Shard, Split, StartingPoint, Task, World};
use kiln::trainer::{Checkpoints, learner};

/// Two layers.
#[derive(Module, Debug)]
pub struct Network<B: Backend> {
    hidden: Linear<B>,
    output: Linear<B>,
}

impl<B: Backend> Network<B> {
    /// The squared errors of points `[n, 2]` on arms `[n, 1]`, which are -1 or 1.
    fn errors(&self, [points, arms]: [Tensor<B, 2>; 2]) -> Tensor<B, 1> {
        let error = self.output.forward(tanh(self.hidden.forward(points))) - arms;
        (error.clone() * error).flatten(0, 1)
    }
}

/// A point in the plane, and its arm.
type Point = ([f32; 2], f32);

fn point(index: usize) -> Point {
    let (angle, arm) = ((index as f32 * 0.618) % 6.0, if index.is_multiple_of(2) { 1.0 } else { -1.0 });
    ([arm * angle * angle.cos() / 6.0, arm * angle * angle.sin() / 6.0], arm)
}

/// The task: on which arm is a point?
pub struct Spirals(InMemDataset<Point>);

impl<B: HostBackend> Task<B> for Spirals {
    type Model = Network<Autodiff<B>>;
    type Batch = Vec<Point>;
    type Input = [Tensor<B, 2>; 2];
    type Outputs = ();

    fn batch(&self, _split: Split, shard: &Shard) -> Result<Vec<Point>> {
        let point = |id: &u32| self.0.get(*id as usize).ok_or_else(|| Error::Data(format!("there is no point {id}")));
        shard.ids.iter().map(point).collect()
    }

    fn to_device(&self, batch: Vec<Point>, device: &B::Device) -> Self::Input {
        let (points, arms): (Vec<[f32; 2]>, Vec<f32>) = batch.into_iter().unzip();
        let tensor = |values: Vec<f32>, width| {
            let rows = values.len() / width;
            Tensor::from_data(TensorData::new(values, [rows, width]), device)
        };
        [tensor(points.concat(), 2), tensor(arms, 1)]
    }

    fn losses(
        &self,
        model: &Self::Model,
        input: Self::Input,
        _: &ForwardContext<Autodiff<B>>,
    ) -> (Tensor<Autodiff<B>, 1>, ()) {
        (model.errors(input.map(Tensor::from_inner)), ())
    }

    fn evaluate(&self, model: &Evaluated<B, Self>, input: Self::Input, _: &ForwardContext<B>) -> (Tensor<B, 1>, ()) {
        (model.errors(input), ())
    }
}

/// A network, and how it is trained.
pub type Experiment<B> = (Network<Autodiff<B>>, DataParallel<B, Spirals>);

/// The network as it was saved last, and how it is trained on `B` for at most `steps` steps.
pub fn experiment<B: HostBackend>(directory: &Path, world: World, steps: usize) -> Result<Experiment<B>> {
    let points = InMemDataset::new((0..1003).map(point).collect());
    // Batches of 16 for each replica, 20 epochs, validated on the first 200 points.
    let mut plan = Plan::new(world, [points.len(), 200], 16, 20)?;
    plan.save_every_steps = 5;
    plan.last_step = plan.last_step.min(steps);
    let device = B::open(0)?;
    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
    let model = initialize(Network { hidden: linear(2, 32), output: linear(32, 1) }, plan.seed)?;
    let checkpoints = Checkpoints::open(directory, &plan)?;
    let (model, start) = match checkpoints.latest()? {
        Some(state) => StartingPoint::restore::<B, _>(model, &state, "the last checkpoint")?,
        None => (model, StartingPoint::default()),
    };
    let (task, limit) = (Arc::new(Spirals(points)), Duration::from_secs(30));
    Ok((model, DataParallel::new(task, Arc::new(plan), start, limit, checkpoints)))
}

#[allow(dead_code, reason = "the tests do the same in another way")]
fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let directory = Path::new(arguments.first().map_or("runs/own_model", String::as_str));
    let world = World::new(number(1, 4), vec![0]);
    let (model, strategy) = experiment::<Flex>(directory, world, number(2, usize::MAX))?;
    learner::train(model, strategy, directory)?;
    println!("trained; the model is in {}/checkpoints/latest", directory.display());
    Ok(())
}
