//! Runs with settings whose parts the engine's tests hold: frozen layers, mixed images, statistics, half types.

use kiln_engine::state::{StateDict, from_safetensors};

use crate::command::{Workplace, errors, succeeded};

fn weights(path: &std::path::Path) -> StateDict {
    from_safetensors(&std::fs::read(path).unwrap(), path).unwrap().0
}

#[test]
fn a_frozen_run_changes_exactly_the_head() {
    let place = Workplace::new();
    place.train("first", &["--epochs=1", "--backend=flex"]);
    let start = place.run("first").checkpoint("latest/model.safetensors");
    let pretrained = format!("--pretrained={}", start.display());
    let output =
        place.train("second", &["--epochs=2", "--freeze=backbone", "--ema-decay=0.5", &pretrained, "--backend=flex"]);
    assert!(output.contains("of them are trained") && output.contains("weights     from"), "{output}");
    let before = weights(&start);
    for file in ["latest/model.safetensors", "latest/average.safetensors"] {
        let after = weights(&place.run("second").checkpoint(file));
        let changed: Vec<_> =
            before.iter().filter(|(name, tensor)| after[*name] != **tensor).map(|(name, _)| name).collect();
        assert_eq!(changed, ["fc.bias", "fc.weight"], "{file}");
    }
    let optimizer = weights(&place.run("second").checkpoint("latest/optimizer.safetensors"));
    assert_eq!(optimizer.keys().collect::<Vec<_>>(), ["fc.bias.0", "fc.weight.0", "step"]);
}

#[test]
fn what_cannot_be_frozen_is_refused_before_the_first_step() {
    let place = Workplace::new();
    let output = place.small("run", &["--freeze=layer7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output)[0].contains("freeze 'layer7' names no trained tensor"), "{:?}", errors(&output));
    assert!(!place.path("run").exists());
}

#[test]
fn a_run_that_keeps_the_mean_is_the_same_on_any_devices_in_stages_elastic_and_resumed() {
    let place = Workplace::new();
    let line =
        ["--epochs=2", "--no-sync-bn", "parallel.bn_statistics=mean", "--accumulation-steps=2", "--ema-decay=0.5"];
    let train = |name: &str, more: &[&str]| place.train(name, &[&line[..], &["--backend=flex"], more].concat());
    let told = train("calm", &[]);
    assert!(told.contains("local batch-norm with averaged running statistics"), "{told}");
    train("two", &["--gpu-ids=0,1"]);
    train("stages", &["--stages=2", "--gpu-ids=0,1"]);
    train("elastic", &["--elastic"]);
    train("cut", &["--max-steps=1"]);
    train("cut", &["--resume"]);
    for name in ["two", "stages", "elastic", "cut"] {
        assert_eq!(place.run(name).tensors(), place.run("calm").tensors(), "{name}");
        assert_eq!(place.run(name).epochs(), place.run("calm").epochs(), "{name}");
    }
    train("first", &["parallel.bn_statistics=first"]);
    assert_ne!(place.run("first").epochs(), place.run("calm").epochs());
    assert_eq!(place.run("first").steps(), place.run("calm").steps());
}

const EVERYTHING: [&str; 8] = [
    "--epochs=2",
    "--rand-augment-ops=2",
    "--random-erasing=0.5",
    "--mixup=0.4",
    "--cutmix=1",
    "--repeated-augmentation=2",
    "model.drop_path=0.5",
    "--backend=flex",
];

#[test]
fn a_run_with_every_augmentation_is_the_same_on_any_number_of_devices_and_after_a_resume() {
    let place = Workplace::new();
    place.train("one", &EVERYTHING);
    place.train("two", &[&EVERYTHING[..], &["--gpu-ids=0,1"]].concat());
    let cut = [&EVERYTHING[..], &["--max-steps=3"]].concat();
    place.train("cut", &cut);
    place.train("cut", &[&EVERYTHING[..], &["--resume"]].concat());
    let tensors = |name: &str| place.run(name).tensors();
    assert_eq!(tensors("one"), tensors("two"));
    assert_eq!(tensors("one"), tensors("cut"));
    place.train("plain", &["--epochs=2", "--backend=flex"]);
    assert_ne!(tensors("one"), tensors("plain"));
    let refused = place.small("one", &["--epochs=3", "--mixup=0", "--resume"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "without one of them it is another experiment");
}

/// The flex backend has no instructions for halves.
#[test]
fn a_half_type_without_instructions_is_named_and_another_trainers_word_for_it_becomes_f32() {
    let place = Workplace::new();
    let plan = |run: &str, arguments: &[&str]| {
        let output = place.small(run, &[&["--backend=flex", "--dry-run"], arguments].concat()).output().unwrap();
        (succeeded(&output), String::from_utf8(output.stderr).unwrap())
    };
    for insisting in [&["--precision=f16"][..], &["--amp", "--precision=f16"]] {
        let (plan, warning) = plan("asked", insisting);
        assert!(plan.contains("f16 with f32 weights"), "{plan}");
        assert!(warning.contains("warning: here f16 is no faster"), "{warning}");
    }
    for word in ["--amp", "trainer.precision=16-mixed", "--fp16"] {
        let (plan, _) = plan("word", &[word]);
        assert!(plan.contains("note: here f16 is no faster") && plan.contains(", f32"), "{plan}");
        assert!(!plan.contains("f16 with f32 weights"), "{plan}");
    }
    assert!(!plan("full", &[]).0.contains("no faster"));
}
