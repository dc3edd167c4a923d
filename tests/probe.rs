//! What units compute is observed without a change of a bit, and the first unit that computes something else is found.

use std::sync::Arc;
use std::time::Duration;

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn_dataset::Dataset;
use kiln_data::{HostBatch, Picture};
use kiln_engine::nn::initialize;
use kiln_engine::parallel::{
    Activations, DataParallel, Evaluated, HostBackend, Observation, Observed, Passage, Passed, Probe, Shard, Split,
    StartingPoint, Task, Unit, World, first_difference,
};
use kiln_system::Result;
use kiln_training::{Classification, Images, Logits};
use kiln_training::{ModelConfig, ResNet};

use crate::reference::run::{Recorded, Recorder, hosted};
use crate::toy;

/// The image of whose shard something goes wrong.
const IMAGE: u32 = 13;
/// The smallest change of a number.
const ULP: f64 = f32::EPSILON as f64;

/// What goes wrong in a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Output(usize),
    /// The gradient that the unit before gets.
    Gradient(usize),
}

/// Classification with a fault.
struct Faulty(Classification, Fault);

impl<B: HostBackend> Task<B> for Faulty {
    type Model = ResNet<Autodiff<B>>;
    type Item = Picture;
    type Batch = (HostBatch, bool);
    type Input = (Images<B>, bool);
    type Outputs = Logits<B>;

    fn dataset(&self, split: Split) -> &dyn Dataset<Picture> {
        <Classification as Task<B>>::dataset(&self.0, split)
    }

    fn prepare(&self, split: Split, items: Vec<Picture>, shard: &Shard) -> Result<Self::Batch> {
        let is_due = split == Split::Training && shard.is_own && shard.ids.contains(&IMAGE);
        Ok((self.0.assemble(split, items, shard)?, is_due))
    }

    fn upload(&self, (batch, is_due): Self::Batch, device: &B::Device) -> Self::Input {
        (self.0.upload(batch, device), is_due)
    }

    fn units(&self) -> Vec<Unit> {
        <Classification as Task<B>>::units(&self.0)
    }

    fn forward(
        &self,
        model: &Self::Model,
        passage: Passage<Autodiff<B>, Self::Input>,
    ) -> Passed<Autodiff<B>, Logits<B>> {
        let (unit, is_due) = (passage.units.start, passage.input.1);
        let mut passage = passage.map(|(images, _)| images);
        if is_due && self.1 == Fault::Gradient(unit) {
            passage.activations = passage.activations.map(|x| {
                let x: Tensor<_, 4> = x.into_tensor();
                let nothing = x.clone() * ULP;
                // In the forward pass that is x: the difference is 0.
                Activations::new(x + (nothing.clone() - nothing.detach()))
            });
        }
        match self.0.forward(model, passage) {
            Passed::Activations(x) if is_due && self.1 == Fault::Output(unit) => {
                let x: Tensor<_, 4> = x.into_tensor();
                let (first, others) = (x.clone().narrow(0, 0, 1), x.clone().narrow(0, 1, x.dims()[0] - 1));
                Passed::Activations(Activations::new(Tensor::cat(vec![first * (1.0 + ULP), others], 0)))
            }
            passed => passed,
        }
    }

    fn evaluate(&self, model: &Evaluated<B, Self>, passage: Passage<B, Self::Input>) -> Passed<B, Logits<B>> {
        self.0.evaluate(model, passage.map(|(images, _)| images))
    }
}

/// Three steps of two replicas with two micro-batches of two images, in `stages`, and what was observed if that was
/// wanted.
fn train<B: HostBackend>(fault: Fault, stages: usize, is_observed: bool) -> (Vec<Observation>, Recorded) {
    let mut setup = toy::setup(2, 2, 0.1);
    setup.accumulation_steps = 2;
    let mut experiment = toy::plan_of(&setup, toy::images(&(0..24).collect::<Vec<_>>(), 4));
    experiment.plan.world = World::staged([2, stages], 0, vec![2 * stages], (0..2 * stages).collect());
    let probe = Probe::default();
    experiment.plan.probe = is_observed.then(|| probe.clone());
    let plan = hosted::<B>(experiment.plan);
    let config = ModelConfig { width: 4, ..ModelConfig::default() };
    let model = ResNet::<Autodiff<B>>::new(&config, 4, 0.0, &B::open(0).unwrap());
    let (recorder, limit, task) = (Recorder::default(), Duration::from_secs(60), Faulty(experiment.task, fault));
    let start = StartingPoint::default();
    let strategy = DataParallel::<B, _>::new(Arc::new(task), Arc::new(plan), start, limit, Box::new(recorder.clone()));
    kiln_engine::train(initialize(model, 0).unwrap(), strategy).unwrap();
    let mut all = probe.take();
    all.sort_by_key(Observation::order);
    let recorded = std::mem::take(&mut *recorder.0.lock().unwrap());
    (all, recorded)
}

fn observing_changes_nothing<B: HostBackend>() {
    let (observations, watched) = train::<B>(Fault::None, 1, true);
    let (none, alone) = train::<B>(Fault::None, 1, false);
    assert!(none.is_empty());
    assert_eq!(watched.states.last().unwrap().weights, alone.states.last().unwrap().weights);
    let count = |observed| observations.iter().filter(|it| it.observed == observed).count();
    // Three steps, two micro-batches, two replicas; ten units, 62 tensors.
    let counts = [Observed::Output, Observed::Backward, Observed::Gradient, Observed::Weight].map(count);
    assert_eq!(counts, [3 * 2 * 2 * 10, 3 * 2 * 2 * 10, 3 * 2 * 2 * 62, 3 * 62]);
    assert_eq!(first_difference(&observations, &train::<B>(Fault::None, 1, true).0), None);
    if B::is_processor() {
        assert_eq!(first_difference(&observations, &train::<B>(Fault::None, 2, true).0), None, "in two stages");
    }
}

/// Images go round: of the second step, 8 to 15, the second replica has 13 and 15 in its second micro-batch.
const PLACE: &str = "step 2, replica 1, micro-batch 1";

fn an_ulp_is_found<B: HostBackend>() {
    let (right, _) = train::<B>(Fault::None, 1, true);
    let cases = [
        (Fault::Output(0), "forward pass of conv1 and bn1 or its input: its norm is "),
        (Fault::Output(4), "forward pass of layer2.1: its norm is "),
        (Fault::Gradient(4), "backward pass, gradient at the output of layer2.0: its norm is "),
    ];
    for (fault, expected) in cases {
        let difference = first_difference(&right, &train::<B>(fault, 1, true).0).unwrap();
        assert!(difference.starts_with(&format!("{PLACE}, {expected}")), "{fault:?}: {difference}");
    }
    let changed = |observed, name: &str| {
        let mut other = right.clone();
        let at = other.iter().position(|it| (it.step, it.observed, &*it.name) == (2, observed, name));
        other[at.unwrap()].checksum ^= 1;
        first_difference(&right, &other).unwrap()
    };
    let gradient = changed(Observed::Gradient, "layer3.0.conv2.weight");
    assert!(gradient.contains("backward pass, gradient of layer3.0.conv2.weight: "), "{gradient}");
    assert!(changed(Observed::Weight, "fc.bias").starts_with("step 2, sum or update of fc.bias: "));
    assert!(gradient.ends_with(" in both, but not all of its bits are"), "{gradient}");
    let last = first_difference(&right, &right[..right.len() - 1]).unwrap();
    assert!(
        last.starts_with("step 3, sum or update of ") && last.ends_with(": only one run has computed it"),
        "{last}"
    );
    assert_eq!(first_difference(&right, &right[1..]).unwrap().split(", ").next(), Some("step 1"));
}

on_every_backend! {
    observing_changes_no_bit => || observing_changes_nothing::<TestBackend>();
    one_ulp_in_one_unit_is_found => || an_ulp_is_found::<TestBackend>();
}
