//! What becomes of single changes: joins, leaves, losses, too few processes, refusals, failing devices.

use std::io::{BufRead, BufReader};

use super::*;

#[test]
fn a_process_alone_trains_as_without_elastic() {
    let place = Workplace::new();
    let line = [&EIGHT[..], &["--epochs=3"]].concat();
    crate::stand_in::over_gloo_only();
    place.train("calm", &line);
    place.train("run", &[&line[..], &["--elastic", "--gpu-ids=0,1"]].concat());
    place.run("run").equals(&place.run("calm"), 3);
}

#[test]
fn the_last_process_that_leaves_saves_the_run() {
    let job = Job::new("1:4", &["--epochs=500", "--checkpoint-every=never"]);
    let alone = job.start();
    until("the run begins", || job.run().steps().len() > 3);
    signal(&alone, "TERM");
    ends(alone, Some(143));
    let reached = job.run().latest_step();
    assert_eq!(job.run().steps().len(), reached);
    // It goes on where it was, from the disk.
    let more = format!("--max-steps={}", reached + 6);
    let line = [&EIGHT[..], &["--epochs=500", &more]].concat();
    job.place.train("run", &[&line[..], &["--resume"]].concat());
    job.place.train("calm", &line);
    assert_eq!(job.run().tensors(), job.place.run("calm").tensors());
    assert_eq!(job.run().steps(), job.place.run("calm").steps());
}

#[test]
fn too_few_processes_wait_and_go_on_when_another_one_comes() {
    let job = Job::new("2:4", &ENDLESS);
    let first = job.start();
    let second = job.join();
    job.steps(5);
    signal(&second, "KILL");
    ends(second, None);
    // One alone does not compute.
    until("the run is saved", || job.run().has_checkpoint());
    let third = job.join();
    job.steps(3);
    // The one that is left computes no more, and saves what both had reached.
    job.stops([first, third]);
}

#[test]
fn too_few_processes_give_up_after_their_timeout() {
    let job = Job::new("2:4", &["--epochs=500"]);
    let rendezvous = job.rendezvous();
    let mut command = job.member();
    command.arg("--elastic-timeout=1");
    for child in [spawn(command), rendezvous] {
        let lines = ends(child, Some(75));
        assert!(lines.concat().contains("1 member is here, --elastic asks for at least 2"), "{lines:?}");
    }
}

#[test]
fn another_configuration_is_refused_and_the_run_goes_on() {
    let job = Job::new("1:4", &ENDLESS);
    let first = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let mut other = job.member();
    other.arg("--learning-rate=0.5");
    let lines = ends(spawn(other), Some(2));
    assert!(lines.concat().contains("optim.learning_rate"), "{lines:?}");
    let mut stranger = job.member();
    stranger.env("KILN_JOB_SECRET", "a secret that nobody else in this run knows").arg("--elastic-timeout=1");
    let lines = ends(spawn(stranger), Some(2));
    assert!(lines.concat().contains("secret"), "{lines:?}");
    let mut fixed = job.place.small("run", &["--world-size=8", "--nnodes=2"]);
    fixed.arg(format!("--dist-url=tcp://127.0.0.1:{}", job.port)).args(["--rank=1", "--timeout=2"]);
    let lines = ends(spawn(fixed), Some(2));
    assert!(lines.concat().contains("--elastic"), "{lines:?}");
    job.steps(3);
    job.stops([first]);
    assert_eq!(job.generations().len(), 1);
}

#[test]
fn a_launch_names_the_address_that_members_asks() {
    let place = Workplace::new();
    let mut command = place.launch(2, "run", &["--epochs=100000", "--elastic=1:2"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut output, mut first) = (BufReader::new(child.stdout.take().unwrap()), String::new());
    output.read_line(&mut first).unwrap();
    let address = first.strip_prefix("rendezvous  ").and_then(|rest| rest.split(';').next()).unwrap();
    assert!(first.trim_end().ends_with(&format!("train members --dist-url {address}")), "{first}");
    until("both take part", || {
        let output = place.bare(&["members", "--dist-url", address]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("running")
    });
    kill(&mut child);
}
