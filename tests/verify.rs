//! `train verify` accepts what a training computed, and names the line, the step or the tensor that somebody changed.

use std::fs;
use std::process::Output;
use std::sync::Once;

use kiln::metrics::{Links, links};
use kiln_engine::checkpoint::{self, Keep, Snapshot, Store};
use kiln_engine::state::{HostTensor, from_safetensors, to_safetensors};
use sha2::{Digest, Sha256};

use crate::command::{Run, Workplace, errors, refused, succeeded};

/// A run of ten steps with a checkpoint every other step, all of which are kept.
const LINE: [&str; 4] = ["--epochs=3", "--max-steps=10", "checkpoint.keep_last=100", "optim.ema_decay=0.9"];

fn trained() -> Workplace {
    static ONCE: Once = Once::new();
    Workplace::prepared("kiln-verified", &ONCE, |place| drop(place.train("run", &LINE)))
}

fn verify(place: &Workplace, arguments: &[&str]) -> Output {
    place.bare(&[&["verify", "run"], arguments].concat()).output().unwrap()
}

fn log(run: &Run) -> Vec<String> {
    fs::read_to_string(run.path().join("metrics.jsonl")).unwrap().lines().map(String::from).collect()
}

fn write_log(run: &Run, lines: &[String]) {
    fs::write(run.path().join("metrics.jsonl"), lines.join("\n") + "\n").unwrap();
}

/// The lines with the digests that somebody would compute who knows how.
fn linked_anew(lines: &[String]) -> Vec<String> {
    let mut before = String::new();
    let mut link = |line: &String| {
        let content = line.rsplit_once(",\"chain\"").unwrap().0;
        let digest = Sha256::digest(format!("{before}{content}"));
        before = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{content},\"chain\":\"{before}\"}}")
    };
    lines.iter().map(&mut link).collect()
}

/// Changes the digit of the loss of a step.
fn with_other_loss(lines: &[String], step: usize) -> Vec<String> {
    let mut lines = lines.to_vec();
    let line = lines.iter_mut().find(|line| line.contains(&format!("\"step\":{step},\"epoch\""))).unwrap();
    let (before, rest) = line.split_once("\"loss\":").unwrap();
    let other = if rest.starts_with('1') { '2' } else { '1' };
    *line = format!("{before}\"loss\":{other}{}", &rest[1..]);
    lines
}

#[test]
fn a_run_is_what_it_says_on_any_placement() {
    let place = Workplace::new();
    place.train("run", &[&LINE[..], &["--gpu-ids=0,1"]].concat());
    for arguments in [&["--stretches=0"][..], &["--stretches=0", "--", "--gpu-ids=0"]] {
        let text = succeeded(&verify(&place, arguments));
        let first = text.lines().next().unwrap();
        assert_eq!(
            first,
            format!("log         {} lines, each follows from the one before", log(&place.run("run")).len())
        );
        assert!(text.contains("repeating   steps 1 to 2, from the beginning\n"), "{text}");
        assert!(text.contains("repeating   steps 7 to 8, from 'run/checkpoints/step-00000006'\n"), "{text}");
        assert!(text.ends_with("verified    10 of 10 steps, 5 of 5 stretches\n"), "{text}");
    }
    let one = succeeded(&verify(&place, &["--seed=1"]));
    assert_eq!(one.matches("repeating").count(), 1, "{one}");
    assert_eq!(one, succeeded(&verify(&place, &["--seed=1"])));
}

#[test]
fn a_resumed_run_goes_on_with_its_chain() {
    let place = trained();
    // The steps behind the checkpoint are repeated, and so are their lines.
    place.train("run", &[&LINE[..], &["--max-steps=12", "--resume=run/checkpoints/step-00000006"]].concat());
    assert_eq!(place.run("run").steps().len(), 12);
    assert!(succeeded(&verify(&place, &["--stretches=0"])).contains("verified    12 of 12 steps"));
}

/// A run that went on with a tenth of the learning rate after five steps, and has only its last checkpoint.
fn changed(place: &Workplace) {
    let line = ["--epochs=3", "--schedule=constant"];
    place.train("run", &[&line[..], &["--max-steps=5", "--lr=0.1"]].concat());
    place.train("run", &[&line[..], &["--max-steps=10", "--lr=0.01", "--resume"]].concat());
    for (step, path) in checkpoint::all(place.run("run").path()).unwrap() {
        if step < 10 {
            fs::remove_dir_all(path).unwrap();
        }
    }
}

#[test]
fn steps_before_other_settings_are_repeated_with_their_own() {
    let place = Workplace::new();
    changed(&place);
    let text = succeeded(&verify(&place, &["--stretches=0"]));
    assert!(text.ends_with("verified    10 of 10 steps, 1 of 1 stretches\n"), "{text}");
    place.train("other", &["--epochs=3", "--schedule=constant", "--max-steps=10", "--lr=0.1"]);
    for (step, path) in checkpoint::all(place.run("other").path()).unwrap() {
        if step < 10 {
            fs::remove_dir_all(path).unwrap();
        }
    }
    let refusal = refused(&verify(&place, &["--against=other"]), 1);
    assert!(refusal.starts_with("train: the runs first differ at step 6, sum or update of "), "{refusal}");
    assert!(refusal.ends_with("; their settings differ in optim.learning_rate"), "{refusal}");
}

#[test]
fn steps_of_another_run_are_left_out() {
    let place = trained();
    place.train("other", &[&LINE[..], &["--max-steps=12", "--resume=run/checkpoints/step-00000006"]].concat());
    let text = succeeded(&place.bare(&["verify", "other", "--stretches=0"]).output().unwrap());
    assert!(text.contains("left out    steps 1 to 8: not in the log\n"), "{text}");
    assert!(text.ends_with("verified    4 of 4 steps, 2 of 2 stretches\n"), "{text}");
}

#[test]
fn a_changed_line_does_not_fit_its_chain() {
    let place = trained();
    let run = place.run("run");
    let right = log(&run);
    let at = right.iter().position(|line| line.contains("\"step\":5,\"epoch\"")).unwrap() + 1;
    let mut without = right.clone();
    without.remove(at - 1);
    let mut twice = right.clone();
    twice.insert(at, right[at - 1].clone());
    for (wrong, line) in [(with_other_loss(&right, 5), at), (without, at), (twice, at + 1)] {
        write_log(&run, &wrong);
        let refusal = refused(&verify(&place, &[]), 1);
        let expected = format!("train: line {line} of 'run/metrics.jsonl' does not follow from the one before: ");
        assert!(refusal.starts_with(&expected), "{refusal}");
    }
}

#[test]
fn a_changed_step_is_named_even_if_its_chain_fits() {
    let place = trained();
    let run = place.run("run");
    write_log(&run, &linked_anew(&with_other_loss(&log(&run), 8)));
    let refusal = refused(&verify(&place, &["--stretches=0"]), 1);
    assert!(refusal.starts_with("train: step 8 differs: its loss is "), "{refusal}");
    assert!(refusal.ends_with(" when repeated; the steps from 7 up to it match the log"), "{refusal}");
}

#[test]
fn a_changed_weight_is_named() {
    let place = trained();
    let run = place.run("run");
    let (step, path) = checkpoint::all(run.path()).unwrap().pop().unwrap();
    let mut loaded = checkpoint::read(&path).unwrap();
    let bytes = loaded.files.get_mut("model.safetensors").unwrap();
    let (mut weights, metadata) = from_safetensors(bytes, &path).unwrap();
    let name = "layer1.0.conv1.weight";
    let Some(HostTensor::F32 { data, .. }) = weights.get_mut(name) else { panic!("there is no {name}") };
    data[3] = f32::from_bits(data[3].to_bits() ^ 1);
    *bytes = to_safetensors(&weights, &metadata);
    let files = loaded.files.into_iter().map(|(name, bytes)| (name, bytes.into())).collect();
    let snapshot = Snapshot { step, epoch: loaded.epoch, accuracy: None, files };
    Store::open(run.path()).unwrap().save(&snapshot, false, Keep { last: 100, best: 1 }).unwrap();
    let refusal = refused(&verify(&place, &["--stretches=0"]), 1);
    let expected = format!("train: '{name}' in 'run/checkpoints/step-00000010' differs from the repeated steps: ");
    assert!(refusal.starts_with(&expected), "{refusal}");
}

/// Compares `run` with another run of ten steps.
fn against(place: &Workplace, other: &str, arguments: &[&str]) -> Output {
    place.train(other, &[&LINE[..], arguments].concat());
    verify(place, &["--against", other])
}

#[test]
fn the_first_unit_in_which_two_runs_part_is_named() {
    let place = trained();
    let text = succeeded(&against(&place, "spread", &["--gpu-ids=0,1"]));
    assert!(text.ends_with("equal       10 steps, and the weights in all common checkpoints\n"), "{text}");
    // Momentum matters from the second update on, whose result is in the first checkpoint.
    let refusal = refused(&against(&place, "slower", &["optim.momentum=0.8"]), 1);
    assert!(refusal.starts_with("train: the runs first differ at step 2, sum or update of "), "{refusal}");
    assert!(refusal.ends_with("; their settings differ in optim.momentum"), "{refusal}");
    // Resumed with another setting behind the checkpoint of the sixth step.
    let resume = ["--resume=run/checkpoints/step-00000006", "--force-config", "data.random_erasing=1"];
    let refusal = refused(&against(&place, "other", &resume), 1);
    let expected = "train: the runs first differ at step 7, replica 0, micro-batch 0, forward pass of conv1 and bn1 or its input: ";
    assert!(refusal.starts_with(expected), "{refusal}");
    assert!(refusal.ends_with("; their settings differ in data.random_erasing"), "{refusal}");
}

#[test]
fn a_run_that_is_not_what_its_steps_compute_is_told_from_another() {
    let place = trained();
    drop(against(&place, "other", &[]));
    let other = place.run("other");
    write_log(&other, &linked_anew(&with_other_loss(&log(&other), 8)));
    let refusal = refused(&verify(&place, &["--against=other"]), 1);
    assert!(
        refusal.starts_with("train: both runs compute the same here, but step 8 in the log of 'other' differs"),
        "{refusal}"
    );
}

#[test]
fn what_cannot_be_verified_is_refused() {
    let place = Workplace::new();
    assert!(refused(&verify(&place, &[]), 1).contains("cannot read 'run/metrics.jsonl'"));
    place.train("run", &["--max-steps=1"]);
    fs::remove_dir_all(place.path("run/checkpoints/step-00000001")).unwrap();
    let output = verify(&place, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(errors(&output), ["train: 'run' has no checkpoint to compare with; give another run"]);
    let both = |arguments: &[&str]| errors(&verify(&place, arguments)).join("\n");
    assert_eq!(
        both(&["--stretches=2", "--against=other"]),
        "train: the argument '--stretches <N>' cannot be used with '--against <RUN>'; see 'train verify --help'"
    );
    assert_eq!(
        both(&["--against=a", "--against=b"]),
        "train: the argument '--against <RUN>' cannot be used multiple times; see 'train verify --help'"
    );
}

#[test]
fn lines_of_earlier_versions_come_before_a_chain() {
    let chained = linked_anew(&[r#"{"a":1,"chain":""}"#.to_string(), r#"{"a":2,"chain":""}"#.to_string()]).join("\n");
    let whole = Links { whole: 2, without: 1, broken: None };
    assert_eq!(links(&format!("{{\"a\":0}}\n{chained}\n")), whole);
    // One that is still being written is left out.
    assert_eq!(links(&format!("{{\"a\":0}}\n{chained}\n{{\"a")), whole);
    assert_eq!(links(&format!("{chained}\n{{\"a\":3}}\n")), Links { whole: 2, without: 0, broken: Some(3) });
}

#[test]
fn a_repetition_writes_nothing_but_its_own_directory() {
    let place = Workplace::new();
    let url = format!("--checkpoint-url=file://{}", place.path("copies").display());
    let line = ["--epochs=3", "--max-steps=10", "checkpoint.keep_last=100", "--checkpoint=best.pth", &url];
    place.train("run", &line);
    place.train("other", &[&line[..3], &["--learning-rate=0.01"]].concat());
    let before = place.snapshot();
    assert!(before.contains_key(&place.path("copies/latest")) && before.contains_key(&place.path("best.pth")));
    let unchanged = || {
        let mut after = place.snapshot();
        after.retain(|path, content| before.get(path) != Some(content));
        assert_eq!(after.into_keys().collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new());
    };
    succeeded(&verify(&place, &["--stretches=0"]));
    unchanged();
    let apart = verify(&place, &["--against=other"]);
    assert!(refused(&apart, 1).contains("the runs first differ at"));
    unchanged();
    // The same holds for the short runs of a measurement.
    let url = format!("--checkpoint-url=file://{}", place.path("measured").display());
    let scaling =
        ["scaling", "--replicas=1", "--mode=weak", "--steps=2", "--warmup-steps=1", "--output-dir=scaling", "--"];
    let arguments =
        [&scaling[..], &["data=synthetic", "data.train_size=30", "--width=4", "--checkpoint=measured.pth", &url]];
    succeeded(&place.bare(&arguments.concat()).output().unwrap());
    assert!(!place.path("measured").exists() && !place.path("measured.pth").exists());
}
