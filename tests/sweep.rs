//! `train sweep`: which runs a grid or a sample has, and what becomes of them when one fails, or the sweep is killed.

mod halving;
mod samples;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use kiln::cli::{self, Cli};
use kiln::config::grid::Point;
use kiln::metrics::Summary;
use kiln_engine::checkpoint::Lock;
use kiln_system::Result;

use crate::command::{self, SMALL, STEPS_PER_EPOCH, Workplace, errors, kill, signal, succeeded, until, wait};

fn parsed(line: &[&str]) -> Result<(Option<PathBuf>, Vec<Point>)> {
    match Cli::try_parse_from([&["train", "sweep"], line].concat())? {
        cli::Command::Sweep(sweep) => Ok((sweep.output_dir.clone(), sweep.points()?)),
        other => panic!("{line:?} should sweep, not {other:?}"),
    }
}

fn names(line: &[&str]) -> Vec<String> {
    parsed(line).unwrap().1.into_iter().map(|point| point.name).collect()
}

fn refused(line: &[&str], rule: &str) {
    let error = parsed(line).unwrap_err().to_string();
    assert!(error.contains(rule), "{line:?}: {error}");
}

#[test]
fn the_last_key_of_a_grid_changes_fastest() {
    let names = names(&["optim.learning_rate=0.05,0.1", "run.seed=1,2,3"]);
    let expected = ["0.05,seed=1", "0.05,seed=2", "0.05,seed=3", "0.1,seed=1", "0.1,seed=2", "0.1,seed=3"];
    assert_eq!(names, expected.map(|rest| format!("learning_rate={rest}")));
}

#[test]
fn commas_in_brackets_and_quotes_do_not_split() {
    assert_eq!(names(&["parallel.gpu_ids=[0],[0,1]"]), ["gpu_ids=[0]", "gpu_ids=[0,1]"]);
    assert_eq!(names(&["model.freeze=none,'conv1,bn1'"]), ["freeze=none", "freeze='conv1,bn1'"]);
    assert_eq!(names(&["optim=sgd,adamw"]), ["optim=sgd", "optim=adamw"]);
    assert_eq!(names(&["data.dir=a/b,c"]), ["dir=a-b", "dir=c"]);
    assert_eq!(names(&["run.a=1,2", "data.a=1,2"])[0], "run.a=1,data.a=1", "names that would be the same are whole");
}

#[test]
fn what_has_one_value_and_what_comes_after_the_dashes_belongs_to_all_runs() {
    let line = ["experiment=quickstart", "run.seed=1,2", "run.epochs=3", "--output-dir", "grid", "--", "--lr", "0.1"];
    let (directory, points) = parsed(&line).unwrap();
    assert_eq!((directory.as_deref(), points.len()), (Some(Path::new("grid")), 2));
    let expected = ["experiment=quickstart", "run.epochs=3", "--lr", "0.1", "run.seed=2"].map(OsString::from);
    assert_eq!(points[1].arguments, expected);
    assert_eq!(points[1].settings, [("run.seed".to_string(), "2".to_string())]);
    assert_eq!(points[1].request.flags.len(), 1);
    assert_eq!(parsed(&["run.seed=1,2"]).unwrap().0, None);
}

#[test]
fn a_grid_that_is_none_is_refused() {
    refused(&["run.seed=1"], "nothing is swept; give a key several values");
    refused(&["run.seed=1,2", "run.seed=3,4"], "'run.seed' is swept twice");
    refused(&["run.seed=1,2,1"], "'run.seed' must have different values, got '1' twice");
    refused(&["seed"], "unknown argument 'seed'");
    let many = (0..101).map(|seed| seed.to_string()).collect::<Vec<_>>().join(",");
    refused(&[&format!("run.seed={many}"), &format!("run.epochs={many}")], "at most 10000 runs");
}

/// A sweep of small runs.
fn sweep(place: &Workplace, directory: &str, grid: &[&str], arguments: &[&str]) -> Command {
    let directory = format!("--output-dir={directory}");
    place.bare(&[&["sweep", directory.as_str()], grid, &["--"], &SMALL, arguments].concat())
}

/// Every file below a directory with the time it was written.
fn written(place: &Workplace, name: &str) -> Vec<(PathBuf, SystemTime)> {
    let below = place.path(name);
    let files = place.snapshot().into_keys().filter(|path| path.starts_with(&below) && path.is_file());
    files.map(|path| (path.clone(), path.metadata().unwrap().modified().unwrap())).collect()
}

fn summary(place: &Workplace, run: &str) -> Summary {
    serde_json::from_slice(&std::fs::read(place.path(run).join("summary.json")).unwrap()).unwrap()
}

#[test]
fn a_sweep_trains_every_point_and_compares_them() {
    let place = Workplace::new();
    let grid = ["optim.learning_rate=0.01,0.02", "run.seed=1,2"];
    let text = succeeded(&sweep(&place, "grid", &grid, &["--epochs=1"]).output().unwrap());
    let with_eta = |text: &str| text.lines().filter(|line| line.starts_with("run ") && line.contains("  eta ")).count();
    assert_eq!(with_eta(&text), 3, "all but the first: {text}");
    place.train("alone", &["--epochs=1", "--lr=0.02", "--seed=1"]);
    let run = place.run("grid/learning_rate=0.02,seed=1");
    assert_eq!((run.tensors(), run.steps()), (place.run("alone").tensors(), place.run("alone").steps()));

    let mut csv = csv::Reader::from_path(place.path("grid/sweep.csv")).unwrap();
    assert_eq!(
        csv.headers().unwrap().iter().take(3).collect::<Vec<_>>(),
        ["optim.learning_rate", "run.seed", "best_accuracy"]
    );
    let rows: Vec<_> = csv.records().map(|row| row.unwrap()).collect();
    let best: Vec<f64> = rows.iter().map(|row| row[2].parse().unwrap()).collect();
    assert!(best.len() == 4 && best.is_sorted_by(|a, b| a >= b), "the best first: {best:?}");
    let settings: std::collections::BTreeSet<_> =
        rows.iter().map(|row| (row[0].to_string(), row[1].to_string())).collect();
    assert_eq!(settings.len(), 4);
    let page = std::fs::read_to_string(place.path("grid/sweep.html")).unwrap();
    for name in names(&grid) {
        assert!(page.contains(&name) && text.matches(&name).count() >= 2, "{name}: {text}");
        assert!(summary(&place, &format!("grid/{name}")).complete);
    }

    let before = written(&place, "grid/learning_rate=0.02,seed=1");
    let again = succeeded(&sweep(&place, "grid", &grid, &["--epochs=1"]).output().unwrap());
    assert_eq!((again.matches("is complete").count(), with_eta(&again)), (4, 0), "{again}");
    assert_eq!(written(&place, "grid/learning_rate=0.02,seed=1"), before);

    // Its learning rate has come to its end, and a table with both would compare what cannot be compared.
    for (other, difference) in [("--epochs=2", "run.epochs: saved 1, now 2"), ("--batch-size=8", "saved 4, now 8")] {
        let output = sweep(&place, "grid", &grid, &["--epochs=1", other]).output().unwrap();
        let line = command::refused(&output, 2);
        assert!(line.contains(difference) && line.contains("(and 3 more); give another --output-dir"), "{line}");
    }
    assert_eq!(written(&place, "grid/learning_rate=0.02,seed=1"), before);
}

#[test]
fn the_same_command_finds_its_numbered_directory_and_another_one_gets_the_next() {
    let place = Workplace::new();
    let numbered = |grid: &[&str], arguments: &[&str]| {
        let line = [&["sweep"], grid, &["--"], &SMALL, &["--epochs=1"], arguments].concat();
        let text = succeeded(&place.bare(&line).output().unwrap());
        text.lines().find(|line| line.starts_with("sweep ")).unwrap().to_string()
    };
    let (seeds, rates) = (["run.seed=1,2"], ["optim.learning_rate=0.01,0.02"]);
    let before = place.snapshot();
    assert!(numbered(&seeds, &["--dry-run"]).ends_with("2 runs in 'sweeps/0001'"));
    assert!(place.snapshot() == before, "a dry run wrote something");
    assert!(numbered(&seeds, &[]).ends_with("'sweeps/0001'"));
    assert!(numbered(&rates, &[]).ends_with("'sweeps/0002'"));
    assert_eq!(std::fs::read_link(place.path("sweeps/last")).unwrap(), Path::new("0002"));
    assert!(numbered(&seeds, &["--batch-size=2"]).ends_with("'sweeps/0003'"));
    let tables = written(&place, "sweeps/0001");
    assert!(numbered(&seeds, &["--dry-run"]).ends_with("'sweeps/0004'"), "its runs have another argument");
    assert!(numbered(&seeds, &[]).ends_with("'sweeps/0001'"));
    assert_eq!(tables.len(), written(&place, "sweeps/0001").len());
    assert!(!place.path("sweeps/0004").exists());
}

#[test]
fn a_run_that_is_stopped_from_outside_stops_the_sweep() {
    let place = Workplace::new();
    let line = ["sweep", "--jobs=2", "--output-dir=grid", "run.seed=1,2,3,4", "--"];
    let command = place.bare(&[&line[..], &SMALL, &["--epochs=16"]].concat());
    let child = started(&place, command, "grid/seed=1", 2);
    let holder = std::fs::read_to_string(place.path("grid/seed=1/.lock")).unwrap();
    let process = holder.split(' ').nth(1).unwrap();
    assert!(Command::new("kill").args(["-TERM", process]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    assert!(String::from_utf8_lossy(&output.stdout).contains("the same command continues"));
    assert!(!place.path("grid/seed=3").exists() && !place.path("grid/seed=4").exists(), "another run began");
}

/// The processes that the threads of a process have started.
fn children(parent: &Child) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", parent.id())).unwrap();
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children")).ok();
    let started: String = threads.filter_map(|thread| of(thread.ok()?)).collect();
    started.split_whitespace().map(String::from).collect()
}

fn runs(process: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with(['Z', 'X']))
}

/// Starts a sweep and waits until its run `name` has done `steps` steps and left a checkpoint.
fn started(place: &Workplace, mut command: Command, name: &str, steps: usize) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the run is under way", || {
        assert_eq!(child.try_wait().unwrap(), None, "the sweep is over too soon");
        place.run(name).steps().len() >= steps && place.run(name).has_checkpoint()
    });
    child
}

#[test]
fn a_killed_sweep_takes_its_run_along_and_goes_on_where_it_was() {
    let place = Workplace::new();
    let (grid, length) = (["run.seed=1,2,3"], ["--epochs=16"]);
    succeeded(&sweep(&place, "calm", &grid, &length).output().unwrap());
    let mut child = started(&place, sweep(&place, "killed", &grid, &length), "killed/seed=2", 10);
    let processes = children(&child);
    assert_eq!(processes.len(), 1);
    let other = sweep(&place, "killed", &grid, &length).output().unwrap();
    assert!(errors(&other)[0].contains("another sweep is running in 'killed'"), "{:?}", errors(&other));
    kill(&mut child);
    until("the run has ended, too", || !runs(&processes[0]));
    // Of a process that is killed, threads may hold the lock a little longer than it shows.
    until("nobody has the run's directory", || Lock::acquire(&place.path("killed/seed=2"), &mut |_| {}).is_ok());
    let reached = place.run("killed/seed=2").steps().len();
    assert!(reached < 16 * STEPS_PER_EPOCH && !place.path("killed/seed=3").exists(), "{reached} steps");
    let (before, unfinished) = (written(&place, "killed/seed=1"), place.path("killed/seed=2/summary.json"));
    assert!(!unfinished.exists());

    let text = succeeded(&sweep(&place, "killed", &grid, &length).output().unwrap());
    assert_eq!(written(&place, "killed/seed=1"), before, "a complete run was touched");
    assert!(text.contains("seed=1  is complete") && text.contains("seed=2  continues"), "{text}");
    for seed in ["seed=1", "seed=2", "seed=3"] {
        place.run(&format!("killed/{seed}")).equals(&place.run(&format!("calm/{seed}")), 16);
    }
}

#[test]
fn a_signal_lets_the_run_save_and_ends_the_sweep_with_its_code() {
    let place = Workplace::new();
    let (grid, length) = (["run.seed=1,2"], ["--epochs=16", "--checkpoint-every=1epochs"]);
    for (name, code) in [("TERM", 143), ("INT", 130)] {
        let mut child = started(&place, sweep(&place, name, &grid, &length), &format!("{name}/seed=1"), 6);
        signal(&child, name);
        assert_eq!(wait(&mut child), Some(code));
        let output = child.wait_with_output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("the same command continues"));
        assert!(errors(&output).is_empty(), "{:?}", errors(&output));
        let run = place.run(&format!("{name}/seed=1"));
        assert_eq!(run.latest_step(), run.steps().len(), "saved after the last step");
        assert!(
            !summary(&place, &format!("{name}/seed=1")).complete && !place.path(&format!("{name}/seed=2")).exists()
        );
    }
    succeeded(&sweep(&place, "TERM", &grid, &length).output().unwrap());
    place.train("calm", &[&["--seed=1"], &length[..]].concat());
    place.run("TERM/seed=1").equals(&place.run("calm"), 16);
}

#[test]
fn a_run_that_fails_is_reported_and_the_others_are_trained() {
    let place = Workplace::new();
    let output = sweep(&place, "grid", &["model.freeze=nolayer,none"], &["--epochs=1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("failed with exit code 2"), "{text}");
    let last = errors(&output).pop().unwrap();
    assert_eq!(last, "train: run 'freeze=nolayer' failed with exit code 2; the sweep continues");
    assert!(summary(&place, "grid/freeze=none").complete);
    let csv = std::fs::read_to_string(place.path("grid/sweep.csv")).unwrap();
    assert!(csv.lines().nth(1).unwrap().starts_with("none,") && csv.lines().nth(2).unwrap().contains(",2,"), "{csv}");
}

#[test]
fn a_mistake_in_any_run_is_refused_before_the_first_one_starts() {
    let place = Workplace::new();
    for (grid, arguments, lines) in [
        (&["optim.learning_rte=0.1,0.2", "run.seed=1,2"][..], &["--epochs=0"][..], 3),
        (&["run.epochs=1,0"], &[], 1),
        (&["run.seed=1,2"], &["--seed=3"], 1),
        (&["run.seed=1,2"], &["--resume"], 1),
        (&["run.seed=1,2", "run.output_dir=x"], &[], 1),
        (&["run.seed=1,2"], &["--checkpoint=best.safetensors"], 1),
        (&["run.seed=1,2"], &["--checkpoint-url=file:///copies"], 1),
        (&["data.dir=a/b,a-b"], &[], 1),
    ] {
        let line = [&["sweep"], grid, &["--"], arguments].concat();
        let output = place.bare(&line).output().unwrap();
        assert_eq!((output.status.code(), errors(&output).len()), (Some(2), lines), "{:?}", errors(&output));
    }
    assert_eq!(place.snapshot().len(), 0);
}

#[test]
fn a_run_that_was_killed_before_its_last_word_says_it_when_it_is_taken_up() {
    let place = Workplace::new();
    place.train("run", &["--epochs=2"]);
    let said = summary(&place, "run");
    std::fs::remove_file(place.path("run/summary.json")).unwrap();
    assert!(place.train("run", &["--epochs=2", "--resume"]).contains("the run is complete"));
    let again = summary(&place, "run");
    assert!(said.complete && again.complete);
    assert_eq!((again.steps, again.epochs, again.best, again.last), (said.steps, said.epochs, said.best, said.last));
}
