//! Stages are a placement: the model of a replica in parts on several devices or processes gives the same numbers.

use kiln_engine::parallel::{HostBackend, World};
use kiln_engine::state::{StateDict, sha256};
use kiln_training::{ModelConfig, Stem};

#[cfg(feature = "gloo")]
use crate::command::succeeded;
use crate::command::{Workplace, errors};
use crate::reference::run::{Experiment, Recorded};
use crate::small::{distance, narrow, plan_of, setup, train_with};

/// Two steps of three micro-batches, the last one uneven.
const IMAGES: usize = 43;

fn recorded<B: HostBackend>(model: &ModelConfig, placement: [usize; 3]) -> Recorded {
    train_with::<B>(model, experiment(placement))
}

/// Of replicas, stages and devices.
pub fn experiment([replicas, stages, devices]: [usize; 3]) -> Experiment {
    let mut setup = setup(replicas, 8 / replicas, 0.05);
    setup.accumulation_steps = 3;
    setup.optim.ema_decay = 0.9;
    setup.optim.clip_grad_norm = 0.5;
    let mut experiment = plan_of(&setup, 0..IMAGES);
    // LibTorch adds up in another order on another number of threads.
    experiment.plan.threads = 1;
    experiment.plan.world = World::staged([replicas, stages], 0, vec![devices], (0..devices).collect());
    experiment
}

/// Everything that the steps change: weights, running statistics, momentum, average.
pub fn outcome(mut recorded: Recorded) -> StateDict {
    let state = recorded.states.pop().unwrap();
    let average = state.average.expect("averaging is on");
    let kinds = [("model", state.weights), ("optimizer", state.optimizer), ("average", average)];
    let named = |(kind, state): (&'static str, StateDict)| {
        state.into_iter().map(move |(name, it)| (format!("{kind} {name}"), it))
    };
    kinds.into_iter().flat_map(named).collect()
}

/// Losses, norms and validation too.
pub fn reports(recorded: &Recorded) -> Vec<f64> {
    let steps = recorded.steps.iter().flat_map(|step| [step.counts.loss, step.gradient_norm]);
    steps.chain(recorded.epochs.iter().map(|epoch| epoch.validation.loss)).collect()
}

/// On a processor; a GPU's backend fuses operations where they meet, so there the stages agree to rounding.
pub fn change_no_bit<B: HostBackend>() {
    change_no_bit_of::<B>(&narrow(Stem::Cifar), &[1, 2]);
}

/// Bottlenecks with groups, cut among them.
fn change_no_bit_of_bottlenecks<B: HostBackend>() {
    let model = ModelConfig { depth: 50, groups: 4, width_per_group: 16, ..narrow(Stem::Cifar) };
    change_no_bit_of::<B>(&model, &[2]);
}

fn change_no_bit_of<B: HostBackend>(model: &ModelConfig, replicas: &[usize]) {
    for replicas in replicas.iter().copied() {
        let whole = recorded::<B>(model, [replicas, 1, 1]);
        let (numbers, whole) = (reports(&whole), outcome(whole));
        for [stages, devices] in [[2, 2], [3, 1], [10, 3]] {
            let placed = recorded::<B>(model, [replicas, stages, devices]);
            let what = format!("{replicas} replicas in {stages} stages");
            if B::is_processor() {
                assert_eq!(reports(&placed), numbers, "{what}");
                assert_eq!(sha256(&outcome(placed)), sha256(&whole), "{what}");
            } else {
                let distance = distance(&outcome(placed), &whole);
                assert!(distance < 1e-5, "{what}: {distance:.1e} from one");
            }
        }
    }
}

on_every_backend! {
    the_stages_of_a_model_change_no_bit => || change_no_bit::<TestBackend>();
    the_stages_of_bottlenecks_change_no_bit => || change_no_bit_of_bottlenecks::<TestBackend>();
}

/// Two epochs of a small training, whatever hosts it.
#[cfg(feature = "gloo")]
fn small(replicas: usize) -> Vec<String> {
    let own = [format!("--world-size={replicas}"), format!("--batch-size={}", 4 / replicas)];
    let common = [
        "--deterministic",
        "--threads=1",
        "--accumulation-steps=2",
        "--epochs=2",
        "--check-every=1",
        "optim.ema_decay=0.9",
        "--mixup=0.2",
    ];
    common.into_iter().map(String::from).chain(own).collect()
}

/// One, two and four processes.
#[cfg(feature = "gloo")]
#[test]
fn stages_in_several_processes_change_no_bit_of_an_experiment() {
    for replicas in [1, 2] {
        let (place, arguments) = (Workplace::new(), small(replicas));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        place.train("whole", &arguments);
        for [stages, processes] in [[2, 1], [3, 1], [2, 2], [3, 2], [2, 4], [3, 4]] {
            if processes > stages * replicas {
                continue;
            }
            let (name, cut) = (format!("{stages}-{processes}"), format!("--stages={stages}"));
            let mut command = place.launch(processes, &name, &[&arguments[..], &[&cut]].concat());
            let output = succeeded(&command.output().unwrap());
            assert!(output.contains(&format!("in {stages} stages")), "{output}");
            place.run(&name).equals(&place.run("whole"), 2);
        }
    }
}

/// Nothing is trained before the cut, or only there, or on both sides of a stage without anything to train.
#[cfg(feature = "gloo")]
#[test]
fn frozen_layers_change_no_bit_of_stages() {
    let (place, arguments) = (Workplace::new(), small(2));
    for (number, frozen) in ["backbone", "conv1,bn1,layer1", "layer2,layer3", "layer3,layer4,fc"].iter().enumerate() {
        let freeze = format!("--freeze={frozen}");
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain([freeze.as_str()]).collect();
        let whole = format!("{number}");
        place.train(&whole, &arguments);
        for [stages, processes] in [[2, 1], [4, 1], [3, 2], [3, 6]] {
            let (name, cut) = (format!("{number}-{stages}-{processes}"), format!("--stages={stages}"));
            succeeded(&place.launch(processes, &name, &[&arguments[..], &[&cut]].concat()).output().unwrap());
            place.run(&name).equals(&place.run(&whole), 2);
        }
    }
}

/// A run goes on with its model cut elsewhere, or not at all.
#[cfg(feature = "gloo")]
#[test]
fn a_run_is_resumed_on_another_cut() {
    let (place, arguments) = (Workplace::new(), small(2));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    place.train("whole", &arguments);
    place.train("moved", &[&arguments[..], &["--stages=2", "--max-steps=3"]].concat());
    let elsewhere = ["--stages=2", "--split-points=8", "--max-steps=5", "--resume"];
    place.train("moved", &[&arguments[..], &elsewhere].concat());
    place.train("moved", &[&arguments[..], &["--stages=4", "--max-steps=6", "--resume"]].concat());
    place.train("moved", &[&arguments[..], &["--resume"]].concat());
    place.run("moved").equals(&place.run("whole"), 2);
}

#[test]
fn a_stage_without_a_part_of_the_network_is_refused() {
    let place = Workplace::new();
    let parts = "every stage needs a part of the model, got '11' stages for a model of 10 parts; use --stages 10";
    for (line, rule) in [
        (
            &["--stages=2", "--split-points=10"][..],
            "the split points [10]; each later stage begins at a unit from 1 to 9",
        ),
        (&["--stages=2", "--split-points=0"], "the split points [0]; each later stage begins at a unit from 1 to 9"),
        (&["--stages=11"], parts),
    ] {
        let output = place.small("run", line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(errors(&output).iter().any(|line| line.contains(rule)), "{:?}", errors(&output));
    }
}
