//! The example of a model that is not Kiln's: its bits do not depend on devices, processes or interruptions.

#[path = "examples/own_model.rs"]
#[allow(dead_code, reason = "the tests do in another way what its `main` does")]
mod example;
#[path = "examples/small_cnn.rs"]
#[allow(dead_code, reason = "as above")]
mod small_cnn;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use burn::backend::Autodiff;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::optim::AdamWConfig;
use kiln_engine::Checkpoints;
use kiln_engine::parallel::{Counts, HostBackend, Observer, Plan, Position, TrainingState, World};
use kiln_engine::state::{HostTensor, StateDict, from_safetensors};

use crate::backends::several_devices;
use crate::reference::run::Recorder;
use crate::toy::{self, Mishap, Toy};
use crate::until::{kill, until};

fn train<B: HostBackend>(directory: &Path, world: World, steps: usize) {
    let (model, strategy) = example::experiment::<B>(directory, world, steps).unwrap();
    kiln_engine::train(model, strategy).unwrap();
}

/// What a run left: weights and the optimizer's memory.
fn tensors(directory: &Path) -> [StateDict; 2] {
    ["model", "optimizer"].map(|name| {
        let path = directory.join(format!("checkpoints/latest/{name}.safetensors"));
        from_safetensors(&std::fs::read(&path).unwrap(), &path).unwrap().0
    })
}

/// The best score, which is the mean squared error with its sign turned.
fn best(directory: &Path) -> f64 {
    let text = std::fs::read_to_string(directory.join("checkpoints/latest/state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&text).unwrap();
    state["state"]["best"]["metric"].as_str().unwrap().parse().unwrap()
}

fn the_same_anywhere<B: HostBackend>() {
    let place = tempfile::tempdir().unwrap();
    let of = |name: &str| place.path().join(name);
    train::<B>(&of("whole"), World::new(4, vec![0]), usize::MAX);
    // 1,003 points in batches of 64: the last one of an epoch has 43, which four replicas cannot share evenly.
    train::<B>(&of("parts"), World::new(4, vec![0]), 37);
    assert_ne!(tensors(&of("parts")), tensors(&of("whole")));
    train::<B>(&of("parts"), World::new(4, vec![0]), usize::MAX);
    assert_eq!(tensors(&of("parts")), tensors(&of("whole")), "resumed in the middle of an epoch");
    train::<B>(&of("alone"), World::new(1, vec![0]), usize::MAX);
    for name in ["whole", "alone"] {
        // Who always answers 0 has an error of 1.
        assert!(best(&of(name)) > -0.8, "{name} learned nothing: {}", best(&of(name)));
    }
    if let Some(devices) = several_devices::<B>(3) {
        train::<B>(&of("spread"), World::new(4, (0..devices).collect()), usize::MAX);
        assert_eq!(tensors(&of("spread")), tensors(&of("whole")), "on {devices} devices");
    }
}

/// The largest difference between two models' numbers.
fn distance(one: &StateDict, other: &StateDict) -> f32 {
    let of = |(name, tensor): (&String, &HostTensor)| {
        let (one, other) = (tensor.as_f32()?, other[name].as_f32()?);
        Some(one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max))
    };
    one.iter().filter_map(of).fold(0.0, f32::max)
}

fn norms_of_all_replicas<B: HostBackend>() {
    let place = tempfile::tempdir().unwrap();
    let train = |name: &str, replicas: usize, steps: usize, sync_bn: bool| {
        let directory = place.path().join(name);
        let world = World::new(replicas, vec![0]);
        let (model, mut strategy) = small_cnn::experiment::<B>(&directory, world, steps).unwrap();
        Arc::get_mut(&mut strategy.plan).unwrap().sync_bn = sync_bn;
        kiln_engine::train(model, strategy).unwrap();
        (tensors(&directory)[0].clone(), best(&directory))
    };
    // In few steps: one ReLU whose input has another sign by rounding changes the fourth digit.
    let few = [("one", 1, true), ("four", 4, true), ("apart", 4, false)];
    let [one, four, apart] = few.map(|(name, replicas, sync_bn)| train(name, replicas, 2, sync_bn).0);
    let (same, other) = (distance(&one, &four), distance(&one, &apart));
    assert!(same < 1e-6 && other > 100.0 * same, "{same} with synchronised batch-norm, {other} without");
    // Whoever guesses one of four has a loss of 1.39.
    let (_, score) = train("long", 4, usize::MAX, true);
    assert!(score > -0.1, "it learned nothing: {score}");
}

fn sharding_is_refused<B: HostBackend>() {
    let place = tempfile::tempdir().unwrap();
    let (model, mut strategy) = example::experiment::<B>(place.path(), World::new(2, vec![0]), 1).unwrap();
    Arc::get_mut(&mut strategy.plan).unwrap().shard_optimizer = true;
    let schedule = CosineAnnealingLrSchedulerConfig::new(0.01, 320).init().unwrap();
    let strategy = strategy.by(AdamWConfig::new().init(), schedule);
    let error = kiln_engine::train(model, strategy).unwrap_err().to_string();
    assert!(error.contains("train without --shard-optimizer"), "{error}");
}

/// As [`train`], by an optimizer and a schedule of Burn's.
fn train_by_adamw<B: HostBackend>(directory: &Path, devices: usize, steps: usize) {
    let world = World::new(4, (0..devices).collect());
    let (model, strategy) = example::experiment::<B>(directory, world, steps).unwrap();
    let schedule = CosineAnnealingLrSchedulerConfig::new(0.01, 320).init().unwrap();
    kiln_engine::train(model, strategy.by(AdamWConfig::new().init(), schedule)).unwrap();
}

fn the_same_by_an_optimizer_of_burns<B: HostBackend>() {
    let place = tempfile::tempdir().unwrap();
    let of = |name: &str| place.path().join(name);
    let weights = |name: &str| tensors(&of(name))[0].clone();
    train_by_adamw::<B>(&of("whole"), 1, usize::MAX);
    train_by_adamw::<B>(&of("parts"), 1, 37);
    assert_ne!(weights("parts"), weights("whole"));
    train_by_adamw::<B>(&of("parts"), 1, usize::MAX);
    assert_eq!(weights("parts"), weights("whole"), "resumed in the middle of an epoch");
    assert!(best(&of("whole")) > -0.8, "it learned nothing: {}", best(&of("whole")));
    if let Some(devices) = several_devices::<B>(3) {
        train_by_adamw::<B>(&of("spread"), devices, usize::MAX);
        assert_eq!(weights("spread"), weights("whole"), "on {devices} devices");
    }
    let (model, strategy) = example::experiment::<B>(&of("whole"), World::new(4, vec![0]), usize::MAX).unwrap();
    let error = kiln_engine::train(model, strategy).unwrap_err().to_string();
    assert!(error.contains("belongs to another model or optimizer"), "{error}");
}

fn another_number_of_samples_is_refused<B: HostBackend>() {
    let device = B::open(0).unwrap();
    let mut experiment = toy::plan_of(&toy::setup(1, 4, 0.1), toy::images(&[0, 1, 2, 3], 2));
    experiment.plan.validation_samples = 3;
    let (toy, limit) = (Toy::<Autodiff<B>>::new(2, Mishap::None, &device), Duration::from_secs(30));
    let error = toy::train::<B>(&toy, experiment, limit, Recorder::default()).unwrap_err().to_string();
    assert!(error.contains("for 3 validation samples, and the data set has 4"), "{error}");
}

on_every_backend! {
    an_own_model_has_the_same_bits_on_any_devices_and_after_a_resume => || the_same_anywhere::<TestBackend>();
    replicas_with_synchronised_norms_compute_what_one_does => || norms_of_all_replicas::<TestBackend>();
    an_optimizer_of_burns_resumes_with_the_same_bits => || the_same_by_an_optimizer_of_burns::<TestBackend>();
    a_sharded_optimizer_of_burns_is_refused => || sharding_is_refused::<TestBackend>();
    a_plan_for_another_number_of_samples_is_refused => || another_number_of_samples_is_refused::<TestBackend>();
}

/// Set for the process that is killed.
#[cfg(feature = "flex")]
const KILLED: &str = "KILN_TEST_OWN_MODEL";

#[cfg(feature = "flex")]
#[test]
#[ignore = "not a test: the process that is killed"]
fn the_process_that_is_killed() {
    let Some(directory) = std::env::var_os(KILLED) else { return };
    train::<Flex>(Path::new(&directory), World::new(4, vec![0]), usize::MAX);
}

#[cfg(feature = "flex")]
#[test]
fn an_own_model_that_is_killed_goes_on_with_the_same_bits() {
    let place = tempfile::tempdir().unwrap();
    let of = |name: &str| place.path().join(name);
    train::<Flex>(&of("whole"), World::new(4, vec![0]), usize::MAX);
    let name = concat!(module_path!(), "::the_process_that_is_killed").split_once("::").unwrap().1;
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args([name, "--exact", "--ignored"]).env(KILLED, of("killed")).stdout(Stdio::null());
    let mut process = process.spawn().unwrap();
    until("a checkpoint", || of("killed").join("checkpoints/latest/state.json").exists());
    kill(&mut process);
    train::<Flex>(&of("killed"), World::new(4, vec![0]), usize::MAX);
    assert_eq!(tensors(&of("killed")), tensors(&of("whole")));
}

#[test]
fn all_that_a_task_counts_goes_on_in_the_middle_of_an_epoch() {
    let place = tempfile::tempdir().unwrap();
    let plan = Plan::new(World::new(1, vec![0]), [64, 16], 8, 2).unwrap();
    let running = Counts { loss: 0.1, samples: 16, counted: [2.5, 7.0] };
    let position = Position { global_step: 2, step_in_epoch: 2, samples_seen: 16, running, ..Position::default() };
    let mut checkpoints = Checkpoints::open(place.path(), &plan).unwrap();
    let state = TrainingState { position: position.clone(), ..TrainingState::default() };
    checkpoints.checkpoint(state).unwrap()().unwrap();
    assert_eq!(checkpoints.latest().unwrap().unwrap().position, position);
}

#[cfg(feature = "gloo")]
fn the_same_over_processes<B: HostBackend>() {
    let place = tempfile::tempdir().unwrap();
    let of = |name: &str| place.path().join(name);
    let world = |rank| World::staged([4, 1], rank, vec![1; 2], vec![0]);
    std::thread::scope(|scope| {
        for (rank, processes) in crate::engines::connected(&world(0), true).into_iter().enumerate() {
            let directory = of(&rank.to_string());
            scope.spawn(move || {
                let (model, strategy) = example::experiment::<B>(&directory, world(rank), usize::MAX).unwrap();
                kiln_engine::train(model, strategy.with(Some(processes))).unwrap();
            });
        }
    });
    train::<B>(&of("whole"), World::new(4, vec![0]), usize::MAX);
    assert_eq!(tensors(&of("0")), tensors(&of("whole")));
}

#[cfg(feature = "gloo")]
mod processes {
    use super::*;

    on_every_backend! {
        an_own_model_has_the_same_bits_over_processes => || the_same_over_processes::<TestBackend>();
    }

    mod over_nccl {
        use super::*;

        on_backend! { "flex" flex Flex:
            an_own_model_has_the_same_bits => || crate::stand_in::over_nccl_on::<TestBackend>(
                the_same_over_processes::<TestBackend>);
        }
    }
}
