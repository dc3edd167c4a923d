//! Runs in stages, in one process and in several, give the numbers of a whole model.

#[cfg(feature = "gloo")]
use crate::command::succeeded;
use crate::command::{Workplace, errors};

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
        for more in [&[][..], &["--dry-run"]] {
            let output = place.small("run", &[line, more].concat()).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            assert!(errors(&output).iter().any(|line| line.contains(rule)), "{:?}", errors(&output));
        }
    }
}
