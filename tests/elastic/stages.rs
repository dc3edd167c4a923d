//! Models in stages whose processes come and go: parts of the state are handed over, put together, or read from the
//! disk.

use std::collections::HashSet;

use super::*;

/// Sixteen workers: eight replicas of each of two stages.
const CUT: [&str; 1] = ["--stages=2"];

fn job(line: &[&str]) -> Job {
    Job::new("1:4", &[&CUT, line].concat())
}

/// The step from which the run went on last.
fn last_start(job: &Job) -> usize {
    job.generations().last().unwrap().step
}

#[test]
fn a_process_that_leaves_hands_its_stages_over() {
    let job = job(&["--epochs=5000", "optim.ema_decay=0.9", "--checkpoint-every=never"]);
    let first = job.start();
    let mut others = vec![job.join(), job.join()];
    job.steps(5);
    // Without any checkpoint each of them goes, the one with the first stage last.
    for leaves in [others.remove(0), others.remove(0)] {
        let reached = job.run().steps().len();
        signal(&leaves, "TERM");
        ends(leaves, Some(143));
        job.steps(5);
        assert!(last_start(&job) >= reached, "{:?}", job.generations());
    }
    let last = job.join();
    job.steps(5);
    let reached = job.run().steps().len();
    signal(&first, "TERM");
    ends(first, Some(143));
    job.steps(3);
    assert!(last_start(&job) >= reached, "{:?}", job.generations());
    job.stops([last]);
}

#[test]
fn survivors_with_all_stages_go_on_where_they_were() {
    let job = job(&["--epochs=5000", "--checkpoint-every=never"]);
    let first = job.start();
    let mut others = vec![job.join(), job.join(), job.join()];
    job.steps(5);
    // Each of the four has half of the replicas of a stage.
    let reached = job.run().steps().len();
    let lost = others.remove(0);
    signal(&lost, "KILL");
    ends(lost, None);
    job.steps(5);
    assert!(last_start(&job) >= reached, "{:?}", job.generations());
    job.stops(others.into_iter().chain([first]));
}

#[test]
fn a_lost_stage_is_read_from_the_last_checkpoint() {
    let job = job(&["--epochs=5000"]);
    let first = job.start();
    let second = job.join();
    let is_of_both = || job.run().has_checkpoint() && job.run().latest_step() > last_start(&job);
    until("there is a checkpoint of both", is_of_both);
    job.steps(3);
    let saved = job.run().latest_step();
    signal(&second, "KILL");
    ends(second, None);
    until("the run goes on", || job.generations().last().is_some_and(|it| it.members == 1));
    let begun = job.run().epochs().len();
    until("epochs are shown", || job.run().epochs().len() > begun + 2);
    signal(&first, "TERM");
    let output = first.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    // What is kept of the log is not shown again; whichever process led showed the first epochs.
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    let ends = shown.lines().filter(|line| line.contains("  train  "));
    let epochs: Vec<&str> = ends.filter_map(|line| line.strip_prefix("epoch")?.split('/').next()).collect();
    assert!(epochs.len() > 2 && epochs.iter().collect::<HashSet<_>>().len() == epochs.len(), "{shown}");
    let lines = errors(&output);
    let warning = "all processes of a stage were lost; the run goes back to its last checkpoint";
    assert!(lines.iter().any(|line| line.contains(warning)), "{lines:?}");
    let start = last_start(&job);
    assert!(start >= saved, "{saved} {start}");
    job.is_calm();
}
