//! Signals, closed pipes and the ways of showing progress: how a run behaves towards whoever started it.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kiln::metrics::Record;
use kiln_system::stop::{Reason, Stop};

use crate::command::{Workplace, errors, refused, signal, succeeded, until, wait};

/// Starts a command and returns once it trains, so that it listens to signals.
fn started(place: &Workplace, mut command: Command) -> Child {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the run begins", || place.path("run/metrics.jsonl").exists());
    child
}

#[test]
fn a_signal_ends_a_run_after_its_step_with_a_checkpoint_and_the_code_of_the_shell() {
    let signals = [
        ("TERM", 143, "SIGTERM"),
        ("INT", 130, "Ctrl-C (SIGINT)"),
        ("USR1", 138, "SIGUSR1"),
        ("USR2", 140, "SIGUSR2"),
        ("HUP", 129, "SIGHUP"),
        ("XCPU", 152, "SIGXCPU"),
    ];
    let calm = Workplace::new();
    calm.train("run", &["--epochs=100", "--max-steps=60"]);
    let calm = calm.run("run").steps();
    for (name, code, words) in signals {
        let place = Workplace::new();
        let arguments = ["--epochs=100", "--checkpoint-every=never"];
        let mut child = started(&place, place.small("run", &arguments));
        until("three steps are done", || place.run("run").steps().len() >= 3);
        signal(&child, name);
        assert_eq!(wait(&mut child), Some(code));
        let output = child.wait_with_output().unwrap();
        assert!(errors(&output).is_empty(), "{:?}", errors(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("\nstopping    after this step, to save; press Ctrl-C again to end the run at once\n"),
            "{text}"
        );
        assert!(text.contains(&format!("\nstopped by {words}; continue with --resume\n")), "{text}");
        let run = place.run("run");
        let reached = run.latest_step();
        assert_eq!(run.steps().len(), reached, "saved after the last step");
        assert!(reached < 400);
        let both = reached.min(calm.len());
        assert_eq!(run.steps()[..both], calm[..both]);
    }
}

#[test]
fn a_limit_for_the_size_of_files_is_named_and_leaves_no_half_checkpoint() {
    let place = Workplace::new();
    let mut command = place.small("run", &["--epochs=1"]);
    let limit = libc::rlimit { rlim_cur: 20_000, rlim_max: 20_000 };
    // SAFETY: a system call between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let line = refused(&command.output().unwrap(), 1);
    assert!(line.contains("cannot write") && line.contains("allow larger files (ulimit -f)"), "{line}");
    assert!(!place.run("run").has_checkpoint());
}

#[test]
fn time_that_other_processes_spent_counts() {
    let stop = Stop::with_time_limit(Duration::from_secs(3600));
    stop.spent(Duration::from_secs(1800));
    assert_eq!(stop.reason(), None);
    stop.spent(Duration::from_secs(3600));
    assert_eq!(stop.reason(), Some(Reason::MaxTime));
    let endless = Stop::new();
    endless.spent(Duration::from_secs(3600));
    assert_eq!(endless.reason(), None);
}

#[test]
fn a_second_signal_ends_the_run_at_once() {
    let place = Workplace::new();
    // A step of this takes many seconds: the first signal alone would not end it soon.
    let arguments = ["--width=64", "--stem=cifar", "--world-size=1", "data.train_size=512", "--batch-size=64"];
    let mut child = started(&place, place.small("run", &arguments));
    until("the second signal is heard", || {
        // Two signals of a kind are one until the first is taken, so they are repeated.
        signal(&child, "INT");
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(wait(&mut child), Some(130));
    assert!(!place.run("run").has_checkpoint(), "it took the time to save");
    let lines = errors(&child.wait_with_output().unwrap());
    assert_eq!(lines, ["train: ended by a second Ctrl-C; steps since the last checkpoint are not saved"]);
}

#[test]
fn a_second_ctrl_c_leaves_no_half_written_checkpoint_and_a_resume_removes_what_a_kill_left() {
    let place = Workplace::new();
    // Most of the time of this run goes to its checkpoints.
    let arguments = ["--width=32", "--epochs=100000", "--checkpoint-every=1steps"];
    let mut child = started(&place, place.small("run", &arguments));
    let unfinished = || {
        let entries = fs::read_dir(place.run("run").checkpoint("")).into_iter().flatten();
        let is_temporary = |name: &String| name.starts_with("step-") && name.ends_with(".tmp");
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).filter(is_temporary).collect::<Vec<_>>()
    };
    until("a checkpoint is being written", || !unfinished().is_empty());
    until("the second signal is heard", || {
        signal(&child, "INT");
        child.try_wait().unwrap().is_some()
    });
    assert_eq!((wait(&mut child), unfinished()), (Some(130), vec![]));
    let killed = place.run("run").checkpoint("step-00000001.tmp");
    fs::create_dir_all(&killed).unwrap();
    place.train("run", &["--width=32", "--max-steps=1", "--resume"]);
    assert_eq!(unfinished(), [""; 0]);
}

#[test]
fn a_job_that_is_signalled_before_its_first_step_does_not_say_that_it_saved() {
    let place = Workplace::new();
    fs::create_dir(place.path("bin")).unwrap();
    fs::write(place.path("bin/scontrol"), "#!/bin/sh\necho Invalid job id >&2\nexit 1\n").unwrap();
    fs::set_permissions(place.path("bin/scontrol"), fs::Permissions::from_mode(0o755)).unwrap();
    // Whoever asks it for images waits for an answer that never comes.
    let mirror = TcpListener::bind("127.0.0.1:0").unwrap();
    let arguments = ["data=cifar10", "data.dir=images", "--download", "--progress=plain", "--requeue"];
    let mut command = place.bare(&arguments);
    command.env("KILN_CIFAR_MIRROR", format!("http://{}", mirror.local_addr().unwrap()));
    command.env("SLURM_JOB_ID", "7").env("PATH", format!("{}:/usr/bin:/bin", place.path("bin").display()));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _asked = mirror.accept().unwrap();
    signal(&child, "TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    let expected =
        "train: 'scontrol requeue 7' failed: Invalid job id; this job did no step and saved nothing: submit it again";
    assert_eq!(errors(&output), [expected]);
}

#[test]
fn the_first_step_has_no_rate_and_a_resumed_run_says_which_steps_its_rate_is_of() {
    let place = Workplace::new();
    let text = place.train("run", &["--max-steps=3", "--log-every=1"]);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("  loss ")).collect();
    assert!(lines[0].contains(" ? img/s") && !lines[1].contains(" ? img/s"), "{text}");
    assert!(text.contains(" images/s\n"), "{text}");
    let text = place.train("run", &["--epochs=2", "--resume"]);
    assert!(
        text.contains("trained     2 epochs, 8 steps") && text.contains(" images/s over the last 5 steps\n"),
        "{text}"
    );
    let rates = place.run("run").records().into_iter().filter_map(|record| match record {
        Record::Step(step) => Some(step.images_per_second.is_some()),
        _ => None,
    });
    assert_eq!(rates.collect::<Vec<_>>(), [false, true, true, false, true, true, true, true]);
    let page = fs::read_to_string(place.path("run/report.html")).unwrap();
    assert!(page.contains("images/s over the last 5 steps"));
}

#[test]
fn a_reader_that_goes_away_ends_no_training() {
    let place = Workplace::new();
    for (name, progress) in [("plain", "--progress=plain"), ("auto", "--progress=auto"), ("bar", "--progress=bar")] {
        let arguments = ["--epochs=2", "--log-every=1", progress];
        let mut child = place.small(name, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(wait(&mut child), Some(0), "{progress}");
        assert_eq!(place.run(name).steps().len(), 8);
    }
}

#[test]
fn a_reader_that_goes_away_makes_no_command_panic() {
    let place = Workplace::new();
    for (arguments, code) in [(&["config"][..], 0), (&["--help"], 0), (&["--epochs=x"], 2), (&["--gibberish"], 2)] {
        let mut child = place.bare(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(wait(&mut child), Some(code), "{arguments:?}");
    }
}

#[test]
fn every_way_of_showing_progress_works_without_a_terminal() {
    let place = Workplace::new();
    for progress in ["auto", "bar", "plain", "none"] {
        let flag = format!("--progress={progress}");
        let output = place.small(progress, &["--epochs=1", &flag]).output().unwrap();
        let text = succeeded(&output);
        assert_eq!(text.contains("epoch 1/1"), matches!(progress, "auto" | "plain"), "{progress}: {text}");
        assert_eq!(text.contains("trained     1 epoch"), progress != "none", "{progress}: {text}");
        assert!(!text.contains('\x1b') && output.stderr.is_empty(), "{progress}: {text}");
    }
}

#[test]
fn a_development_run_touches_every_part_within_three_steps() {
    let place = Workplace::new();
    let text = place.train("run", &["--fast-dev-run", "--checkpoint=best.safetensors"]);
    let run = place.run("run");
    assert_eq!((run.steps().len(), run.epochs().len(), run.latest_step()), (3, 1, 3));
    assert!(place.path("best.safetensors").exists() && text.contains("trained     1 epoch, 3 steps"), "{text}");
}

#[test]
fn a_run_that_saves_never_still_saves_its_end_and_the_copy_that_was_asked_for() {
    let place = Workplace::new();
    place.train("run", &["--epochs=3", "--checkpoint-every=never"]);
    let names: Vec<_> =
        fs::read_dir(place.run("run").checkpoint("")).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names.iter().filter(|name| name.to_string_lossy().starts_with("step-")).count(), 1, "{names:?}");
    assert_eq!(place.run("run").latest_step(), 12);
    place.train("copied", &["--epochs=3", "--checkpoint-every=never", "--checkpoint=best.safetensors"]);
    assert!(place.path("best.safetensors").exists());
}
