//! `train scaling` as a process: real runs, measured.

use kiln::study::scaling::Mode;
use serde_json::Value;

use crate::command::{Workplace, errors, succeeded};

/// What is trained.
const TRAINING: [&str; 7] =
    ["--", "data=synthetic", "data.train_size=64", "--width=4", "--stem=imagenet", "--batch-size=4", "--seed=3"];

#[test]
fn sizes_are_measured_and_the_files_hold_what_was_measured() {
    let place = Workplace::new();
    let arguments = ["scaling", "--replicas=2,1", "--steps=4", "--warmup-steps=2", "--output-dir=here"];
    let output = succeeded(&place.bare(&[&arguments[..], &TRAINING].concat()).output().unwrap());
    assert!(output.contains("measured    weak scaling, 2 replicas, 1 process"), "{output}");
    let found: Value = serde_json::from_slice(&std::fs::read(place.path("here/scaling.json")).unwrap()).unwrap();
    let all: Vec<kiln::study::scaling::Measurement> = serde_json::from_value(found["measurements"].clone()).unwrap();
    let sizes: Vec<_> = all.iter().map(|it| (it.mode, it.replicas, it.images_per_step, it.steps)).collect();
    assert_eq!(sizes, [(Mode::Weak, 1, 4, 4), (Mode::Weak, 2, 8, 4), (Mode::Strong, 1, 8, 4), (Mode::Strong, 2, 8, 4)]);
    for it in &all {
        assert_eq!(it.exposed_communication > 0.0, it.replicas > 1, "{}", it.name());
        assert!(it.memory_bytes > 10 << 20, "{}", it.name());
    }
    for file in ["scaling.csv", "scaling.svg"] {
        assert!(place.path("here").join(file).is_file(), "{file}");
    }
    assert!(!place.path("runs").exists(), "measured runs leave nothing behind");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let place = Workplace::new();
    let refused = |arguments: &[&str], part: &str| {
        let output = place.bare(&[&["scaling"], arguments].concat()).output().unwrap();
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        assert!(errors(&output).last().unwrap().contains(part), "{arguments:?}: {:?}", errors(&output));
    };
    refused(&["--replicas=0"], "--help");
    refused(&["--replicas=1", "--", "--epochz=3"], "did you mean '--epochs 3'?");
    refused(&["--replicas=1", "--", "report", "x"], "arguments for training, not another command");
    refused(&[&["--replicas=3,8", "--mode=strong"], &TRAINING[..]].concat(), "leaves a remainder");
    refused(&["--replicas=1", "--", "data=folder", "--data-dir=nowhere"], "no folder 'nowhere/train'");
    refused(&["--replicas=1", "--", "--epochs=3"], "train scaling sets --epochs itself");
    refused(&["--replicas=1", "--", "parallel.world_size=3"], "train scaling sets --world-size itself");
}
