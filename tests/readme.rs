//! The README's commands are understood by the program they are about, and those that need no other machine are run.

use std::path::Path;
use std::process::Output;

use kiln::cli::{Cli, Command};

use crate::command::{Workplace, errors, succeeded};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");

/// Every command of an indented block, without its comment, and without what stands before `train`.
fn commands() -> Vec<String> {
    let text = std::fs::read_to_string(README).unwrap();
    let block = text.lines().filter_map(|line| line.strip_prefix("    "));
    let command = |line: &str| {
        let line = line.split("  #").next().unwrap_or(line).trim().trim_end_matches("...").trim();
        let line = line.strip_prefix("$ ").unwrap_or(line);
        let front = ["mpirun -np 2 ", "srun -N2 ", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500 "];
        let line = front.iter().find_map(|front| line.strip_prefix(front)).unwrap_or(line);
        (line == "train" || line.starts_with("train ")).then(|| line.to_string())
    };
    block.filter_map(command).collect()
}

/// The words of a command; its paths have no spaces.
fn words(command: &str) -> Vec<&str> {
    command.split_whitespace().skip(1).collect()
}

#[test]
fn every_command_is_one_of_the_program() {
    let all = commands();
    assert!(all.len() > 30, "only {} commands were found", all.len());
    for command in all {
        let understood = Cli::try_parse_from(command.split_whitespace().map(|word| word.replace("...", "")));
        assert!(understood.is_ok(), "'{command}': {}", understood.unwrap_err());
    }
}

/// Whether a training can begin here and now: on one machine, with drawn images.
fn runs_alone(words: &[&str]) -> bool {
    let others = ["--rank", "--dist-url", "--elastic", "--download", "--data-dir", "--resume", "--pretrained"];
    !words.iter().any(|word| others.iter().any(|other| word.starts_with(other)) || word.contains("experiment=transfer"))
}

#[test]
fn every_training_of_one_machine_can_begin() {
    let place = Workplace::new();
    let mut begun = 0;
    for command in commands() {
        let words = words(&command);
        let trains =
            matches!(Cli::try_parse_from(std::iter::once("train").chain(words.iter().copied())), Ok(Command::Train(_)));
        if !trains || !runs_alone(&words) || words.contains(&"epoch=3") {
            continue;
        }
        let drawn = ["--data=synthetic", "data.train_size=64", "data.val_size=16", "--dry-run"];
        let output = place.bare(&[&words[..], &drawn].concat()).output().unwrap();
        assert!(succeeded(&output).contains("model       ResNet-18"), "{command}");
        begun += 1;
    }
    assert!(begun >= 5, "only {begun} trainings began");
}

/// The other commands, in the order of the README, in one place that has two runs and some images.
#[test]
fn commands_about_runs_and_models_do_what_is_said() {
    let place = Workplace::new();
    let run = |words: &[&str]| -> Output { place.bare(words).output().unwrap() };
    let small = ["data=synthetic", "data.train_size=64", "data.val_size=16", "--width=4", "--progress=none"];
    for _ in 0..2 {
        succeeded(&run(&[&small[..], &["--epochs=1"]].concat()));
    }
    for name in ["cat.jpg", "dog.png"] {
        image::RgbImage::from_pixel(32, 32, image::Rgb([90, 20, 200])).save(place.path(name)).unwrap();
    }
    let mut done = 0;
    for command in commands() {
        let words = words(&command);
        // What sweep, scaling, find and launch start are trainings; these have tests of their own.
        let about = ["evaluate", "predict", "export", "report", "completions", "man", "config"];
        if !words.first().is_some_and(|first| about.contains(first)) {
            continue;
        }
        let output = run(&words);
        assert_eq!(output.status.code(), Some(0), "'{command}': {:?}", errors(&output));
        done += 1;
    }
    assert!(done >= 6, "only {done} commands were run");
    assert!(Path::new(&place.path("report.html")).is_file());
}
