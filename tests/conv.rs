//! How a run computes its convolutions: `--conv`, which belongs to the experiment.

use std::fs;

use kiln_engine::checkpoint::Snapshot;
use kiln_engine::checkpoint::content::Entry;
use kiln_engine::checkpoint::manifest::Manifest;

use crate::command::{Run, Workplace, errors};

/// Two epochs of two steps of a network whose convolutions fast kernels take.
const WIDE: [&str; 6] =
    ["--stem=cifar", "--width=16", "--batch-size=2", "data.train_size=8", "data.val_size=4", "--epochs=2"];

fn train(place: &Workplace, name: &str, arguments: &[&str]) -> Run {
    place.train(name, &[&WIDE[..], arguments].concat());
    place.run(name)
}

#[test]
fn convolutions_round_as_asked_for_and_alike_on_any_number_of_threads() {
    let place = Workplace::new();
    let direct = train(&place, "direct", &["--conv=direct"]).tensors();
    let auto = train(&place, "auto", &["--threads=1"]).tensors();
    assert_ne!(auto, direct, "the kernels of auto are others");
    assert_eq!(train(&place, "more", &["--threads=3", "--conv=auto"]).tensors(), auto);
    let shown = place.bare(&["config", "--conv=direct"]).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("conv = \"direct\""));
    for (asked, said) in [("direct", true), ("auto", false)] {
        let plan = place.train("plan", &["--dry-run", "--conv", asked]);
        assert_eq!(plan.contains(", direct convolutions"), said, "{plan}");
    }
}

#[test]
fn a_resumed_run_computes_as_before() {
    let place = Workplace::new();
    let direct = train(&place, "direct", &["--conv=direct"]).tensors();
    let run = train(&place, "run", &["--conv=direct", "--max-steps=3"]);
    let other = place.small("run", &[&WIDE[..], &["--conv=auto", "--resume"]].concat()).output().unwrap();
    assert!(errors(&other)[0].contains("model.conv: saved \"direct\", now \"auto\""), "{:?}", errors(&other));
    assert_eq!(train(&place, "run", &["--resume"]).tensors(), direct);
    // One whose checkpoint does not know of the choice.
    let run_from_before = train(&place, "before", &["--conv=direct", "--max-steps=3"]);
    forget_conv(&run_from_before);
    assert_eq!(train(&place, "before", &["--resume"]).tensors(), direct);
    assert_eq!(run.tensors(), direct);
}

/// Takes the choice out of the latest checkpoint.
fn forget_conv(run: &Run) {
    let place = run.checkpoint("latest");
    let mut said = Manifest::read(&place).unwrap();
    let text = fs::read_to_string(place.join("config.toml")).unwrap();
    assert!(text.contains("conv = \"direct\"\n"), "{text}");
    let text = text.replace("conv = \"direct\"\n", "");
    fs::write(place.join("config.toml"), &text).unwrap();
    said.files.insert("config.toml".into(), Entry::of(text.as_bytes()));
    let snapshot = Snapshot { step: said.step, epoch: said.epoch, accuracy: said.accuracy(), files: Vec::new() };
    fs::write(place.join("manifest.json"), Manifest::of(&snapshot, said.files).to_json()).unwrap();
}
