//! Every generation has a communicator of its own.

use super::*;
use crate::stand_in::over;

/// Processes are killed, leave and come; a call hangs once. Nothing of it shows in the numbers.
#[test]
fn generations_over_nccl_change_no_bit() {
    let job = Job::new("1:3", &["--epochs=5000", "--backend=flex", "--dist-backend=nccl", "--timeout=2"]);
    let start = |fault: &str| over(job.member(), fault).map(spawn);
    let Some(first) = start("") else { return };
    let mut second = start("").unwrap();
    job.has_members(2);
    job.steps(5);
    kill(&mut second);
    job.has_members(1);
    job.steps(3);
    let third = start("").unwrap();
    job.has_members(2);
    // A call of the third communicator hangs in the process that comes last.
    let fourth = start("hang:2:100:0").unwrap();
    job.has_members(3);
    job.steps(30);
    job.stops([third, first, fourth]);
}

/// A call fails: the processes go on in another generation.
#[test]
fn a_call_that_fails_costs_a_generation() {
    let job = Job::new("1:2", &["--epochs=25", "--backend=flex", "--dist-backend=nccl", "--timeout=1"]);
    let Some(first) = over(job.member(), "").map(spawn) else { return };
    job.has_members(1);
    let second = over(job.member(), "error:1:100:0").map(spawn).unwrap();
    for child in [first, second] {
        ends(child, Some(0));
    }
    let generations = job.generations();
    assert!(generations.len() > 2, "nothing failed: {generations:?}");
    assert!(generations.iter().all(|it| !it.why.contains("was lost")), "{generations:?}");
    job.run().equals(&job.calm(&[]), 25);
}
