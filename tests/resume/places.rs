//! What is resumed is looked at before anything else is read, by a dry run too; copies lack links, and may lie
//! elsewhere.

use std::fs;
use std::process::Stdio;

use kiln::metrics::Summary;

use crate::command::{STEPS_PER_EPOCH, Workplace, copy, errors, refused, signal, succeeded, until};

#[test]
fn what_cannot_be_resumed_is_refused_before_the_images_are_looked_for() {
    let place = Workplace::new();
    fs::create_dir_all(place.path("empty")).unwrap();
    fs::create_dir_all(place.path("unsaved/checkpoints/step-00000002.tmp")).unwrap();
    fs::write(place.path("unsaved/config.toml"), "").unwrap();
    fs::write(place.path("file"), "").unwrap();
    let missing = "there is no 'nowhere' to resume";
    for (arguments, rule) in [
        (&["--resume=nowhere"][..], missing),
        (&["--resume", "--output-dir=nowhere"], missing),
        (&["--resume"], "there is no run in 'runs' to resume"),
        (&["--resume=empty"], "'empty' holds no checkpoint to resume from; give another run or checkpoint"),
        (&["--resume=unsaved"], "'unsaved' holds no checkpoint to resume from"),
        (
            &["--resume", "--output-dir=unsaved"],
            "'unsaved' holds no checkpoint to resume from; give another --output-dir",
        ),
        (
            &["--resume=file"],
            "'file' holds no checkpoint to resume from; give another run or checkpoint, --pretrained file for weights alone",
        ),
        (&["--resume", "--dry-run"], "there is no run in 'runs' to resume"),
        (&["--resume=nowhere", "--elastic=1:1"], missing),
        (&["config", "--resume=nowhere"], missing),
    ] {
        let line = refused(&place.bare(arguments).output().unwrap(), 2);
        assert!(line.contains(rule), "{arguments:?}: {line}");
    }
    let wrong = errors(&place.bare(&["--resume=nowhere", "--lr=fast", "--epochs=0"]).output().unwrap());
    assert_eq!(wrong.len(), 2, "wrong settings are said first, all of them: {wrong:?}");
}

#[test]
fn a_dry_run_refuses_what_the_run_would_refuse() {
    let place = Workplace::new();
    place.train("run", &["--epochs=2", "--max-steps=3"]);
    fs::write(place.path("file"), "").unwrap();
    for (arguments, code, rule) in [
        (&["--output-dir=run", "--resume", "--world-size=4"][..], 2, "parallel.world_size: saved 2, now 4"),
        (&["--output-dir=run", "--resume", "--force-config", "--width=8"], 1, "check --stem, --width, model.bn_parts"),
        (&["--output-dir=run"], 2, "'run' already holds checkpoints; a new run needs one of its own: continue"),
        (&["--output-dir=file/run"], 2, "give another --output-dir"),
        (&["--output-dir=new", "--checkpoint=nowhere/best.pt"], 2, "there is no directory 'nowhere'"),
    ] {
        let before = place.snapshot();
        let said = [&["--dry-run"][..], &[]].map(|more| {
            let output = place.small("other", &[&["--epochs=2"], arguments, more].concat()).output().unwrap();
            assert!(place.snapshot() == before, "{arguments:?} wrote something");
            refused(&output, code)
        });
        assert!(said[0] == said[1] && said[0].contains(rule), "{said:?}");
    }
    let plan = succeeded(&place.small("run", &["--epochs=2", "--resume", "--dry-run"]).output().unwrap());
    assert!(plan.contains("resuming    run/checkpoints/step-00000003 after step 3, in epoch 1"), "{plan}");
}

#[test]
fn a_copy_without_links_has_the_same_newest_and_best_checkpoint() {
    let place = Workplace::new();
    place.train("run", &["--epochs=3", "--keep-last=100", "--lr=0.3"]);
    let target = |pointer: &str| fs::read_link(place.run("run").checkpoint(pointer)).unwrap();
    let best = target("best");
    assert_ne!(best, target("latest"), "the test would say nothing");
    copy(&place.path("run"), &place.path("copied"), false);
    for which in ["best", "latest"] {
        let line = ["evaluate", "--checkpoint=copied", "--which", which, "data=synthetic", "data.val_size=16"];
        let said = succeeded(&place.bare(&line).output().unwrap());
        let expected = format!("'copied/checkpoints/{}/", target(which).display());
        assert!(said.contains(&expected), "{which}: {said}");
    }
    place.train("copied", &["--epochs=4", "--lr=0.3", "--resume", "--keep-last=1"]);
    let kept = fs::read_link(place.run("copied").checkpoint("best")).unwrap();
    assert!(kept >= best && place.run("copied").checkpoint("best/manifest.json").exists(), "{kept:?}");
    // Of all runs of a copied directory, the newest goes on.
    fs::create_dir(place.path("runs")).unwrap();
    fs::rename(place.path("copied"), place.path("runs/0007")).unwrap();
    let plan = succeeded(&place.bare(&["--resume", "--epochs=5", "--dry-run"]).output().unwrap());
    assert!(plan.contains("resuming    runs/0007/checkpoints/step-00000016"), "{plan}");
}

#[test]
fn a_longer_schedule_says_how_the_learning_rate_goes_on() {
    let place = Workplace::new();
    place.train("run", &["--epochs=2", "--lr=0.1", "--momentum=0"]);
    let said = place.train("run", &["--epochs=4", "--lr=0.1", "--momentum=0", "--resume"]);
    let rates = place.run("run").rates();
    let (last, next) = (rates[2 * STEPS_PER_EPOCH - 1].1 as f32, rates[2 * STEPS_PER_EPOCH].1 as f32);
    let expected = format!("changes from {last} in step 8 to {next} in step 9; the saved schedule had 0 there");
    assert!(said.contains(&expected), "'{expected}' is not in {said}");
    let same = place.train("run", &["--epochs=4", "--lr=0.1", "--momentum=0", "--resume", "--log-every=1"]);
    assert!(!same.contains("the learning rate changes"), "{same}");
}

#[test]
fn a_relative_folder_of_images_says_what_it_is_relative_to() {
    let place = Workplace::new();
    let lines = errors(&place.bare(&["--data=folder", "--data-dir=photos"]).output().unwrap());
    let here = fs::canonicalize(place.path("")).unwrap();
    let expected = format!("; 'photos' is relative to '{}'", here.display());
    assert!(lines.len() == 1 && lines[0].ends_with(&expected), "{lines:?}");
}

#[test]
fn a_session_without_a_whole_epoch_counts_those_before() {
    let place = Workplace::new();
    // A hundred steps an epoch.
    let line = ["--epochs=3", "data.train_size=800", "--checkpoint-every=never"];
    place.train("run", &[&line[..], &["--max-steps=101"]].concat());
    let mut resumed = place.small("run", &[&line[..], &["--resume"]].concat());
    let child = resumed.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("a few more steps are done", || place.run("run").steps().len() > 103);
    signal(&child, "TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("trained     1 epoch, 1"), "{said}");
    let summary = fs::read(place.path("run/summary.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Summary>(&summary).unwrap().epochs, 1);
}
