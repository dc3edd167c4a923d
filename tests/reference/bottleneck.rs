//! Networks of bottlenecks, with and without groups: gradients and a short training held against PyTorch's in f64.

use std::path::Path;

use burn::backend::Autodiff;
use kiln_data::{ImageSet, Normalization};
use kiln_engine::nn::state_dict;
use kiln_engine::optim::{OptimConfig, Schedule};
use kiln_engine::parallel::{HostBackend, ReducePrecision};
use kiln_engine::state::{StateDict, from_safetensors};
use kiln_ops::Precision;
use kiln_training::{ModelConfig, ResNet, Stem};
use tempfile::tempdir;

use super::compare::{is_buffer, joint_l2, probed};
use super::fixture::floats;
use super::named_gradients;
use super::run::{Recorded, Setup, plan, run};
use crate::python::ask;

/// As in `bottlenecks.py`.
const WIDTH: usize = 8;
const SIDE: usize = 8;
const BATCH: usize = 8;
const CLASSES: usize = 10;

/// One step's gradients on one replica, and ten steps of two replicas that share their statistics.
pub fn follow<B: HostBackend>(groups: usize, width_per_group: usize) {
    let directory = tempdir().unwrap();
    let [groups_, per_group] = [groups, width_per_group].map(|number| number.to_string());
    let arguments = [Path::new(&groups_), Path::new(&per_group), directory.path()];
    let Some(losses) = ask("torch, torchvision", "weights/bottlenecks.py", &arguments) else { return };
    let losses: Vec<f64> = serde_json::from_str(&losses).unwrap();
    let read = |name: &str| {
        let path = directory.path().join(name).with_extension("safetensors");
        from_safetensors(&std::fs::read(&path).unwrap(), &path).unwrap().0
    };
    let model =
        ModelConfig { stem: Stem::Cifar, depth: 50, width: WIDTH, groups, width_per_group, ..ModelConfig::default() };
    // With counts of batches.
    let mut start = state_dict(&ResNet::<Autodiff<B>>::new(&model, CLASSES, 0.0, &B::open(0).unwrap()));
    start.extend(read("start"));
    let trained = |replicas: usize, steps: usize, rate: f64, decay: f64| {
        train::<B>(&model, &start, &read("images"), replicas, steps, [rate, decay])
    };

    let done = trained(1, 1, 0.0, 0.0);
    let state = done.states.last().unwrap();
    let (ours, theirs) = (named_gradients(&state.optimizer, &state.weights), read("gradients"));
    assert!(ours.keys().eq(theirs.keys()) && ours.contains_key("layer4.2.conv3.weight"), "other parameters");
    let whole = norm(theirs.values().flat_map(floats).copied());
    for (name, gradient) in &ours {
        let (ours, theirs) = (floats(gradient), floats(&theirs[name]));
        let distance = norm(ours.iter().zip(theirs).map(|(a, b)| a - b));
        // Some are zero: the shift of a batch-norm before another one, if its ReLU lets everything pass.
        let limit = 1e-4 * norm(theirs.iter().copied()) + 1e-6 * whole;
        assert!(
            ours.len() == theirs.len() && distance < limit,
            "gradient of {name}: {distance:.2e}, limit {limit:.2e}"
        );
    }

    let done = trained(2, losses.len(), 0.005, 5e-4);
    for (step, (ours, theirs)) in done.steps.iter().zip(&losses).enumerate() {
        let loss = ours.counts.mean_loss();
        assert!((loss - theirs).abs() < 1e-4, "step {step}: loss {loss} against {theirs}");
    }
    let mut pairs = probed(&done.states.last().unwrap().weights, &read("end"), "");
    for (name, (ours, theirs)) in &mut pairs {
        // What the steps have changed.
        ours.iter_mut().zip(floats(&start[name])).for_each(|(end, start)| *end -= start);
        theirs.iter_mut().zip(floats(&start[name])).for_each(|(end, start)| *end -= start);
    }
    for buffers in [false, true] {
        let distance = joint_l2(&pairs, |name| is_buffer(name) == buffers);
        assert!(distance < 1e-3, "after {} steps: {distance:.2e}", losses.len());
    }
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

fn train<B: HostBackend>(
    model: &ModelConfig,
    weights: &StateDict,
    images: &StateDict,
    replicas: usize,
    steps: usize,
    [rate, decay]: [f64; 2],
) -> Recorded {
    let setup = Setup {
        world_size: replicas,
        devices: (0..replicas).collect(),
        batch_size: BATCH / replicas,
        accumulation_steps: 1,
        precision: Precision::F32,
        reduce_precision: ReducePrecision::F32,
        sync_bn: true,
        optim: OptimConfig { momentum: 0.9, nesterov: false, weight_decay: decay, ..OptimConfig::default() },
        schedule: Schedule::constant(rate, steps),
    };
    let count = steps * BATCH;
    let bytes = floats(&images["images"])[..count * 3 * SIDE * SIDE].iter().map(|byte| *byte as u8).collect();
    let labels = floats(&images["labels"])[..count].iter().map(|label| *label as u32).collect();
    let classes = (0..CLASSES).map(|class| class.to_string()).collect();
    let images = ImageSet::new(bytes, labels, classes, [SIDE; 2]).unwrap();
    let normalization = Normalization { mean: [0.5; 3], std: [0.25; 3] };
    run::<B>(plan(&setup, images, normalization), model, CLASSES, weights)
}
