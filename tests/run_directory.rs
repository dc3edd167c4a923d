//! The directory of a run: one run at a time, the settings that a resumed run has, and what a supervisor restarts.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use kiln::metrics::{Record, Summary};
use kiln_engine::checkpoint::{Lock, Store, run_dir, write_atomic};
use kiln_system::Error;
use tempfile::tempdir;

use crate::checkpoint::{names, no_warning, run_with};
use crate::command::{SMALL, Workplace, errors, kill, refused, succeeded, until};

/// A run that goes on until it is killed, and has saved a checkpoint.
struct Live<'a> {
    place: &'a Workplace,
    child: Child,
}

impl<'a> Live<'a> {
    fn start(place: &'a Workplace, name: &str) -> Self {
        let mut command = place.small(name, &["--epochs=100000"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("the run saves a checkpoint", || place.run(name).has_checkpoint());
        Self { place, child }
    }

    /// Tries a small training in `run`, which must be refused in favour of this process.
    #[track_caller]
    fn excludes(&mut self, run: &str, arguments: &[&str]) {
        let output = self.place.small(run, arguments).output().unwrap();
        let holder = format!("'{run}' is in use by process {} on host '", self.child.id());
        let line = refused(&output, 75);
        assert!(line.contains(&holder) && line.contains("another --output-dir"), "{line}");
        assert_eq!(self.child.try_wait().unwrap(), None, "the run that was there first has ended");
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

#[test]
fn a_directory_that_a_run_writes_to_is_refused_to_every_other_run() {
    let place = Workplace::new();
    let mut live = Live::start(&place, "run");
    live.excludes("run", &["--resume"]);
    live.excludes("run", &["--resume=auto"]);
    live.excludes("run", &["--resume=run/checkpoints/latest"]);
    live.excludes("run", &[]);
    // Reading is free.
    succeeded(&place.bare(&["evaluate", "--checkpoint=run"]).output().unwrap());
    succeeded(&place.small("other", &["--resume=run", "--max-steps=1", "--epochs=100000"]).output().unwrap());
    drop(live);
    // A process that is killed leaves no lock behind.
    place.train("run", &["--resume", "--epochs=100000", "--max-steps=1"]);
}

#[test]
fn a_lock_is_shared_or_lost_to_another_run_but_never_both() {
    let directory = tempdir().unwrap();
    let (is_over, other_holds) = (AtomicBool::new(false), AtomicBool::new(false));
    let acquire = || Lock::acquire(directory.path(), &mut |_| {});
    let both = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let Ok(_lock) = acquire() else { continue };
                other_holds.store(true, SeqCst);
                (0..20).for_each(|_| std::thread::yield_now());
                other_holds.store(false, SeqCst);
            }
        });
        let held_by_both = |_: &usize| {
            let Ok(lock) = acquire() else { return false };
            let Ok(_share) = lock.share(directory.path()) else { return false };
            (0..100).any(|_| other_holds.load(SeqCst))
        };
        let both = (0..20_000).filter(held_by_both).count();
        is_over.store(true, SeqCst);
        both
    });
    assert_eq!(both, 0);
}

#[test]
fn a_lock_that_leads_elsewhere_is_refused() {
    let place = Workplace::new();
    fs::create_dir(place.path("run")).unwrap();
    fs::write(place.path("victim"), "precious").unwrap();
    std::os::unix::fs::symlink("../victim", place.path("run/.lock")).unwrap();
    let lines = errors(&place.small("run", &["--max-steps=2"]).output().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("run/.lock': it is a symlink"), "{lines:?}");
    assert_eq!(fs::read(place.path("victim")).unwrap(), b"precious");
}

#[test]
fn a_checkpoint_is_there_for_readers_while_it_is_replaced() {
    let place = Workplace::new();
    place.train("run", &["--max-steps=2"]);
    // Whoever replaces it has set it aside.
    let here = place.run("run").checkpoint("step-00000002");
    fs::rename(&here, here.with_extension("old")).unwrap();
    for name in ["run", "run/checkpoints/best", "run/checkpoints/step-00000002"] {
        let said = succeeded(&place.bare(&["evaluate", "--checkpoint", name]).output().unwrap());
        assert!(said.contains("evaluation.json"), "its run is not known");
    }
}

#[test]
fn of_runs_that_begin_at_once_in_one_directory_one_trains() {
    let place = Workplace::new();
    place.train("calm", &["--epochs=8"]);
    let spawn = |_| {
        let mut command = place.small("run", &["--epochs=8"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let outputs: Vec<_> =
        (0..4).map(spawn).collect::<Vec<_>>().into_iter().map(|it| it.wait_with_output().unwrap()).collect();
    let trained = outputs.iter().filter(|output| output.status.code() == Some(0)).count();
    assert_eq!(trained, 1, "{:?}", outputs.iter().map(errors).collect::<Vec<_>>());
    for refused in outputs.iter().filter(|output| output.status.code() != Some(0)) {
        let line = errors(refused).join(" ");
        assert!(line.contains("is in use by") || line.contains("already holds checkpoints"), "{line}");
    }
    place.run("run").equals(&place.run("calm"), 8);
}

#[test]
fn a_resumed_run_has_the_settings_of_its_checkpoint_not_those_of_an_edited_file() {
    let place = Workplace::new();
    let own = ["--epochs=3", "--learning-rate=0.07"];
    place.train("calm", &own);
    place.train("run", &[&own[..], &["--max-steps=6"]].concat());
    let file = place.path("run/config.toml");
    let text = fs::read_to_string(&file).unwrap();
    let resume = || place.bare(&["--resume", "--output-dir=run", "--progress=plain"]).output().unwrap();

    fs::write(&file, &text[..40]).unwrap();
    let before = place.snapshot();
    let line = refused(&resume(), 1);
    for part in ["'run/config.toml' is damaged", "move it away", "'run/checkpoints/step-00000006/config.toml'"] {
        assert!(line.contains(part), "{line}");
    }
    assert!(place.snapshot() == before, "a refused run changed its directory");

    fs::write(&file, text.replace("learning_rate = 0.07", "learning_rate = 0.9")).unwrap();
    let said = succeeded(&resume());
    let note = "'run/config.toml' is ignored where it differs from the checkpoint's settings: optim.learning_rate: saved 0.07, now 0.9";
    assert!(said.contains(note), "{said}");
    place.run("run").equals(&place.run("calm"), 3);
}

#[test]
fn one_command_begins_a_run_and_goes_on_with_it_however_often_it_is_started() {
    let place = Workplace::new();
    place.train("calm", &["--epochs=2"]);
    let start = |steps: &str| place.train("run", &["--epochs=2", "--resume=auto", steps]);
    assert!(!start("--max-steps=3").contains("resuming"));
    assert!(start("--max-steps=5").contains("resuming    run/checkpoints/step-00000003 after step 3"));
    start("--max-steps=0");
    place.run("run").equals(&place.run("calm"), 2);
    assert!(start("--max-steps=0").contains("the run is complete"));

    let output = place.bare(&[&SMALL[..], &["--resume=auto"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output)[0].contains("--output-dir DIR"), "{:?}", errors(&output));
}

#[test]
fn a_run_without_an_intact_checkpoint_begins_anew_where_that_was_asked_for() {
    let place = Workplace::new();
    place.train("calm", &["--epochs=2"]);
    place.train("run", &["--epochs=2", "--max-steps=2"]);
    fs::write(place.run("run").checkpoint("latest/model.safetensors"), "x").unwrap();
    let output = place.small("run", &["--epochs=2", "--resume=auto"]).output().unwrap();
    assert!(errors(&output)[0].contains("model.safetensors' is damaged"), "{:?}", errors(&output));
    assert!(!succeeded(&output).contains("resuming"));
    place.run("run").equals(&place.run("calm"), 2);
}

#[test]
fn every_run_gets_a_number_of_its_own_however_many_start_at_once() {
    let base = tempdir().unwrap();
    let base = base.path().join("runs");
    assert_eq!(run_dir::last(&base), None);
    assert_eq!(run_dir::next(&base).unwrap(), base.join("0001"));
    fs::create_dir(base.join("0041")).unwrap();
    let mut claimed: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8).map(|_| scope.spawn(|| run_dir::next(&base).unwrap())).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    claimed.sort();
    assert_eq!(claimed, (42..50).map(|number| base.join(format!("{number:04}"))).collect::<Vec<_>>());
    let next = run_dir::next(&base).unwrap();
    assert_eq!(run_dir::unsaved(&base), Some(next.clone()));
    run_dir::announce(&base, &base.join("0042"));
    assert_eq!((run_dir::last(&base), run_dir::unsaved(&base)), (Some(base.join("0042")), Some(next.clone())));
    run_dir::announce(&base, &next);
    run_dir::announce(&base, &base.join("0042"));
    assert_eq!((run_dir::last(&base), run_dir::unsaved(&base)), (Some(next), None));
}

#[test]
fn the_last_run_is_the_newest_that_has_a_checkpoint() {
    let place = Workplace::new();
    let train = |arguments: &[&str]| place.bare(&[&SMALL[..], arguments].concat()).output().unwrap();
    let last = || fs::read_link(place.path("runs/last")).unwrap();
    succeeded(&train(&["--epochs=1"]));
    assert_eq!(last().to_str(), Some("0001"));
    // The second run fails before its first checkpoint: its learning rate makes the loss infinite.
    let failed = train(&["--epochs=1", "--learning-rate=1e38", "--checkpoint-every=never"]);
    assert_eq!(failed.status.code(), Some(1), "{:?}", errors(&failed));
    assert!(place.path("runs/0002").is_dir());
    assert_eq!(last().to_str(), Some("0001"));
    image::RgbImage::new(8, 8).save(place.path("one.png")).unwrap();
    succeeded(&place.bare(&["predict", "one.png"]).output().unwrap());
    let resumed = train(&["--epochs=2", "--resume"]);
    assert!(errors(&resumed)[0].contains("'runs/0002' has no checkpoint, so it is not resumed"));
    assert!(succeeded(&resumed).contains("resuming    runs/0001/"));
    succeeded(&train(&["--epochs=1"]));
    assert_eq!(last().to_str(), Some("0003"));
    // An older run that goes on stays older.
    succeeded(&train(&["--epochs=3", "--resume=runs/0001"]));
    assert_eq!(last().to_str(), Some("0003"));

    let absent = train(&["--resume=runs/9999"]);
    assert_eq!(absent.status.code(), Some(2));
    let line = &errors(&absent)[0];
    assert!(
        line.starts_with("train: there is no 'runs/9999' to resume; give a run (the latest is 'runs/0003')"),
        "{line}"
    );
}

#[test]
fn a_pointer_that_is_no_link_is_refused_before_the_first_step() {
    let place = Workplace::new();
    fs::create_dir_all(place.path("run/checkpoints/latest")).unwrap();
    let output = place.small("run", &["--epochs=1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output)[0].contains("'run/checkpoints/latest' is not the symlink"), "{:?}", errors(&output));
    assert!(output.stdout.is_empty(), "it had begun");
}

#[test]
fn a_run_directory_that_cannot_be_made_is_an_error_that_names_it() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let errors = [
        Store::open(&file).map(drop).unwrap_err(),
        run_dir::claim(&file.join("run"), false, &mut no_warning).map(drop).unwrap_err(),
        run_dir::next(&file).map(drop).unwrap_err(),
        write_atomic(&file.join("model.safetensors"), b"x").unwrap_err(),
        write_atomic(dir.path(), b"x").unwrap_err(),
        write_atomic(Path::new("/"), b"x").unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(&error, Error::Io { .. }), "{error}");
    }
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn a_directory_with_checkpoints_is_only_for_the_run_that_resumes_them() {
    let (run, _) = run_with(&[1]);
    let claim = |dir: &Path, resuming| run_dir::claim(dir, resuming, &mut no_warning);
    let error = claim(run.path(), false).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("--resume latest") && error.to_string().contains("another --output-dir"));
    claim(run.path(), true).unwrap();
    let new = run.path().join("a/new");
    drop(claim(&new, false).unwrap());
    Store::open(&new).unwrap();
    let lock = claim(&new, false).unwrap();
    assert_eq!(names(&new), [".lock", "checkpoints"]);
    assert_eq!(claim(&new, true).unwrap_err().exit_code(), 75);
    assert_eq!(Lock::join(&new).unwrap_err().exit_code(), 75);
    let lock = lock.share(&new).unwrap();
    let other = Lock::join(&new).unwrap();
    drop(lock);
    assert_eq!(claim(&new, true).unwrap_err().exit_code(), 75, "the rest of the run is there");
    drop(other);
    claim(&new, true).unwrap();
}

#[test]
fn a_program_that_watches_gets_the_lines_of_the_metrics_file_and_nothing_else() {
    let place = Workplace::new();
    let output = place.small("run", &["--max-steps=6", "--progress=json"]).output().unwrap();
    // But for the digests that chain the lines of the file.
    let without = |line: &str| line.split_once(",\"chain\"").unwrap().0.to_string() + "}\n";
    let log = fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let said = succeeded(&output);
    let (records, end) = said.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(records.to_string() + "\n", log.lines().map(without).collect::<String>());
    let Ok(Record::Start(start)) = serde_json::from_str(said.lines().next().unwrap()) else { panic!("{said}") };
    assert_eq!((start.step, start.steps, start.directory.to_str()), (0, 6, Some("run")));
    let summary = |line: &str| {
        assert!(line.starts_with("{\"kind\":\"end\","), "{line}");
        serde_json::from_str::<Summary>(line).unwrap()
    };
    assert_eq!((summary(end).steps, summary(end).complete), (6, true));
    // Nothing is left of it, which a program reads as well.
    let again = place.small("run", &["--max-steps=6", "--progress=json", "--resume"]).output().unwrap();
    assert!(summary(succeeded(&again).trim_end()).complete);
}

#[test]
fn a_trial_of_the_program_is_not_the_last_run() {
    let place = Workplace::new();
    let bare = |arguments: &[&str]| succeeded(&place.bare(&[&SMALL[..], arguments].concat()).output().unwrap());
    bare(&["--epochs=2", "--max-steps=3"]);
    bare(&["--fast-dev-run"]);
    assert!(place.run("runs/0002").has_checkpoint());
    assert_eq!(fs::read_link(place.path("runs/last")).unwrap(), Path::new("0001"));
    let output = place.bare(&["--resume", "--dry-run"]).output().unwrap();
    assert!(succeeded(&output).contains("resuming    runs/0001/"), "{output:?}");
    assert_eq!(errors(&output), Vec::<String>::new(), "the trial has a checkpoint, and is none to go on with");
}
