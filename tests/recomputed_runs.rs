//! Runs whose activations are computed again, in several processes and on other placements.

use crate::command::Workplace;
#[cfg(feature = "gloo")]
use crate::command::succeeded;

const SMALL: [&str; 6] =
    ["--epochs=2", "--accumulation-steps=2", "--mixup=0.2", "--drop-path=0.2", "optim.ema_decay=0.9", "--threads=1"];

#[test]
fn a_run_goes_on_with_the_other_setting() {
    let place = Workplace::new();
    let train = |name: &str, more: &[&str]| place.train(name, &[&SMALL, more].concat());
    train("kept", &[]);
    let output = train("mixed", &["--grad-checkpointing", "--max-steps=1"]);
    assert!(output.contains("activations computed again"), "{output}");
    train("mixed", &["parallel.grad_checkpointing=false", "--max-steps=2", "--resume"]);
    train("mixed", &["--grad-checkpointing", "--stages=2", "--max-steps=3", "--resume"]);
    train("mixed", &["--resume"]);
    place.run("mixed").equals(&place.run("kept"), 2);
}

/// Nothing is trained before a stage, or only there, or in none of the units of one.
#[test]
fn frozen_units_change_no_bit() {
    for frozen in ["backbone", "conv1,bn1,layer1", "layer2,layer3", "layer3,layer4,fc"] {
        let (place, freeze) = (Workplace::new(), format!("--freeze={frozen}"));
        place.train("kept", &[&SMALL, &[&*freeze][..]].concat());
        for stages in ["--stages=1", "--stages=3"] {
            place.train(stages, &[&SMALL, &[&*freeze, stages, "--grad-checkpointing"][..]].concat());
            place.run(stages).equals(&place.run("kept"), 2);
        }
    }
}

/// The peak of a training's memory.
#[cfg(target_os = "linux")]
fn memory(more: &[&str]) -> u64 {
    let place = Workplace::new();
    let sizes =
        ["--backend=flex", "--world-size=1", "--stem=cifar", "--width=16", "--batch-size=128", "data.train_size=128"];
    place.train("run", &[&sizes[..], &["--max-steps=1"], more].concat());
    let summary = std::fs::read(place.path("run/summary.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&summary).unwrap()["peak_memory"].as_u64().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_computed_again_takes_no_memory_before() {
    // 16 channels of 32x32 in f32, 128 times, are 8 MiB. There are 18 such maps, and 5 that units begin with; 4 of one
    // unit.
    let [kept, again] = [memory(&[]), memory(&["--grad-checkpointing"])];
    assert!(kept > again + 6 * (8 << 20), "{kept} bytes with all activations, {again} without");
}

/// Sums over several processes, which begin beside the backward pass.
#[cfg(feature = "gloo")]
#[test]
fn nor_in_several_processes() {
    let (place, arguments) = (Workplace::new(), [&SMALL[..], &["--deterministic", "--check-every=1"]].concat());
    place.train("kept", &arguments);
    for [stages, processes] in [[1, 2], [2, 2], [3, 2], [2, 4]] {
        let (name, cut) = (format!("{stages}-{processes}"), format!("--stages={stages}"));
        let line = [&arguments[..], &[&*cut, "--grad-checkpointing"]].concat();
        succeeded(&place.launch(processes, &name, &line).output().unwrap());
        place.run(&name).equals(&place.run("kept"), 2);
    }
}

#[cfg(feature = "gloo")]
#[test]
fn nor_in_an_elastic_run() {
    let place = Workplace::new();
    crate::stand_in::over_gloo_only();
    place.train("kept", &SMALL);
    let elastic = ["--elastic", "--gpu-ids=0,1", "--stages=2", "--grad-checkpointing"];
    place.train("elastic", &[&SMALL[..], &elastic].concat());
    place.run("elastic").equals(&place.run("kept"), 2);
}

#[cfg(feature = "gloo")]
over_nccl! { nor_in_several_processes }
