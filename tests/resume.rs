//! A run that was cut short goes on as if nothing had happened: bit for bit, sample for sample, line for line.

mod places;

use std::time::Duration;

use kiln_engine::checkpoint::run_dir;

use crate::command::{Run, SMALL, STEPS_PER_EPOCH, Workplace, errors, kill, rounds, succeeded, until};

/// Numbers that look random and are the same in every run of the test.
struct Moments(u64);

impl Moments {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Kills the run `kills` times, up to two steps and a few milliseconds after it was taken up, then lets it end.
fn kill_again_and_again(place: &Workplace, name: &str, kills: u64, arguments: &[&str]) {
    let run = place.run(name);
    let mut moments = Moments(kills);
    for _ in 0..kills {
        let resume = if run_dir::is_begun(run.path()) { "--resume" } else { "run.seed=0" };
        let before = run.steps().len();
        let (steps, delay) = (moments.below(3) as usize, Duration::from_millis(moments.below(40)));
        let mut child = place.small(name, arguments).arg(resume).stdout(std::process::Stdio::null()).spawn().unwrap();
        let mut ended = false;
        until("the run makes progress", || {
            ended = child.try_wait().unwrap().is_some();
            ended || run.steps_at_least(before, steps)
        });
        assert!(!ended, "the run was over before it was killed so often");
        std::thread::sleep(delay);
        kill(&mut child);
    }
    assert!(run.has_checkpoint(), "no kill came after a checkpoint");
    place.train(name, &[arguments, &["--resume"]].concat());
}

impl Run {
    /// Whether the run is `steps` steps further than it was at `before`. While it is being taken up its lines are
    /// rewritten, and may be fewer.
    fn steps_at_least(&self, before: usize, steps: usize) -> bool {
        let text = std::fs::read_to_string(self.path().join("metrics.jsonl")).unwrap_or_default();
        text.matches("\"kind\":\"step\"").count() >= before + steps
    }
}

fn survives(kills: u64, epochs: usize, arguments: &[&str]) {
    let place = Workplace::new();
    let length = format!("--epochs={epochs}");
    let arguments = [arguments, &[length.as_str()]].concat();
    place.train("calm", &arguments);
    kill_again_and_again(&place, "killed", kills, &arguments);
    place.run("killed").equals(&place.run("calm"), epochs);
}

#[test]
fn a_run_killed_again_and_again_ends_as_if_it_had_been_left_in_peace() {
    survives(rounds(8) as u64, 16, &[]);
}

#[test]
fn averaged_weights_and_accumulation_survive_kills_too() {
    survives(8, 16, &["--ema-decay=0.9", "--accumulation-steps=2", "--checkpoint-every=1steps"]);
}

#[test]
fn a_run_goes_on_from_every_checkpoint_it_left_even_before_a_validation() {
    let place = Workplace::new();
    place.train("calm", &["--epochs=3", "--keep-last=100"]);
    for step in [2, STEPS_PER_EPOCH, 6, 2 * STEPS_PER_EPOCH] {
        let calm = place.run("calm");
        let expected = (calm.tensors(), calm.steps(), calm.epochs());
        let from = format!("--resume=calm/checkpoints/step-{step:08}");
        succeeded(&place.small("", &["--epochs=3", "--keep-last=100", &from]).output().unwrap());
        assert_eq!((calm.tensors(), calm.steps(), calm.epochs()), expected, "from step {step}");
        calm.saw_every_image_once(3);
    }
}

#[test]
fn limits_of_steps_and_time_end_a_run_in_good_order() {
    let place = Workplace::new();
    let epochs = 60;
    place.train("calm", &["--epochs=60"]);
    place.train("steps", &["--epochs=60", "--max-steps=7"]);
    assert_eq!(place.run("steps").latest_step(), 7);
    let text = place.train("steps", &["--epochs=60", "--max-steps=7", "--resume"]);
    assert!(
        text.contains("the run is complete: 7 steps are done; to continue, raise --epochs or --max-steps"),
        "{text}"
    );
    let text = place.train("steps", &["--epochs=60", "--max-time=1s", "--resume"]);
    assert!(text.contains("stopped by --max-time; continue with --resume"), "{text}");
    let reached = place.run("steps").latest_step();
    assert!((8..epochs * STEPS_PER_EPOCH).contains(&reached), "stopped after step {reached}");
    place.train("steps", &["--epochs=60", "--resume"]);
    place.run("steps").equals(&place.run("calm"), epochs);
}

#[test]
fn another_experiment_is_refused_with_every_difference() {
    let place = Workplace::new();
    place.train("run", &["--epochs=2", "--max-steps=3"]);
    let before = place.snapshot();
    for (arguments, differences) in [
        (&["--world-size=4", "--seed=7"][..], &["run.seed: saved 0, now 7", "parallel.world_size: saved 2, now 4"][..]),
        (&["data.train_size=31"], &["images: saved fingerprint "]),
        (
            &["--precision=bf16-mixed", "--reduce-precision=bf16"],
            &["run.precision: saved \"f32\", now \"bf16\"", "parallel.reduce_precision: saved \"f32\", now \"bf16\""],
        ),
        (
            &["--width=8", "--stem=cifar"],
            &["model.stem: saved \"imagenet\", now \"cifar\"", "model.width: saved 4, now 8"],
        ),
    ] {
        let output = place.small("run", &[&["--epochs=2", "--resume"], arguments].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let mut lines = errors(&output);
        // Not every processor has instructions for bf16.
        lines.retain(|line| !line.contains("warning: here bf16 is no faster"));
        assert_eq!(lines.len(), 1, "{lines:?}");
        for part in differences.iter().chain(&["belongs to another experiment", "--force-config"]) {
            assert!(lines[0].contains(part), "'{part}' is not in {lines:?}");
        }
        assert!(place.snapshot() == before, "a refused run changed its directory");
    }
}

#[test]
fn a_forced_world_goes_on_with_the_samples_that_are_left() {
    let place = Workplace::new();
    for (name, world) in [("wider", "--world-size=4"), ("narrower", "--world-size=1")] {
        place.train(name, &["--epochs=3", "--max-steps=6"]);
        let run = place.run(name);
        assert_eq!(run.samples()[&1].len(), 16, "16 of 30 images of the second epoch are done");
        place.train(name, &["--epochs=3", world, "--resume", "--force-config"]);
        run.saw_every_image_once(3);
        assert_eq!(run.epochs().iter().map(|(epoch, _)| *epoch).collect::<Vec<_>>(), [1, 2, 3]);
    }
}

/// Momentum, which has a sign, would be read as a mean of squares.
#[test]
fn a_forced_optimizer_begins_anew() {
    let place = Workplace::new();
    place.train("run", &["--epochs=2", "--max-steps=4", "--optimizer=sgd"]);
    let other = ["--epochs=2", "--optimizer=rmsprop", "--learning-rate=1e-4", "--resume", "--force-config"];
    let output = place.small("run", &other).output().unwrap();
    let lines = errors(&output);
    assert!(output.status.success() && lines.concat().contains("this one begins anew"), "{lines:?}");
}

#[test]
fn a_damaged_checkpoint_falls_back_to_the_one_before() {
    let place = Workplace::new();
    let arguments = ["--epochs=2", "--ema-decay=0.5"];
    place.train("calm", &arguments);
    place.train("cut", &[&arguments[..], &["--max-steps=6"]].concat());
    let run = place.run("cut");
    let path = run.checkpoint("latest/average.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&path, bytes).unwrap();
    let output = place.small("cut", &[&arguments[..], &["--resume"]].concat()).output().unwrap();
    assert!(succeeded(&output).contains("after step 4"), "{output:?}");
    let warnings = errors(&output);
    assert!(warnings[0].starts_with("train: warning:") && warnings[0].contains("average.safetensors"), "{warnings:?}");
    run.equals(&place.run("calm"), 2);
}

/// What the run was begun with need not be said again; what is said wins, and another experiment is still refused.
#[test]
fn a_run_goes_on_with_its_own_settings() {
    let place = Workplace::new();
    let own = ["--epochs=4", "--learning-rate=0.07", "--ema-decay=0.9"];
    place.train("calm", &own);
    succeeded(&place.bare(&[&SMALL[..], &own, &["--max-steps=6"]].concat()).output().unwrap());
    let resume =
        |arguments: &[&str]| place.bare(&[&["--resume", "--progress=plain"], arguments].concat()).output().unwrap();
    let said = succeeded(&resume(&["--max-steps=9"]));
    assert!(
        said.contains("settings are from 'runs/0001/checkpoints/step-00000006/config.toml' unless given here"),
        "{said}"
    );
    assert!(said.contains("width 4"), "{said}");
    succeeded(&resume(&[]));
    place.run("runs/0001").equals(&place.run("calm"), 4);
    let refused = errors(&resume(&["--world-size=3", "--epochs=5"])).join(" ");
    assert!(refused.contains("parallel.world_size: saved 2, now 3") && !refused.contains("model.width"), "{refused}");
    // A checkpoint brings what it was saved with, wherever it goes on.
    let elsewhere = ["--resume=runs/0001/checkpoints/best", "--epochs=5", "--output-dir=other", "--progress=plain"];
    assert!(succeeded(&place.bare(&elsewhere).output().unwrap()).contains("checkpoints/best/config.toml'"));
}

#[test]
fn a_run_in_stages_goes_on_in_them_and_is_checked_in_them() {
    let place = Workplace::new();
    place.train("calm", &["--epochs=2"]);
    place.train("run", &["--epochs=2", "--stages=2", "--gpu-ids=0,1,2,3", "--max-steps=5"]);
    let resumed = succeeded(&place.bare(&["--resume", "--output-dir=run"]).output().unwrap());
    assert!(resumed.contains("2 stages"), "{resumed}");
    place.run("run").equals(&place.run("calm"), 2);
    for command in [&["evaluate", "--checkpoint=run"][..], &["verify", "run"], &["verify", "run", "--", "--gpu-ids=0"]]
    {
        succeeded(&place.bare(command).output().unwrap());
    }
}
