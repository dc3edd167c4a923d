//! The rendezvous of an elastic run: held by a trainer or alone, lost, and held again.

use super::*;

#[test]
fn the_rendezvous_moves_to_another_process_when_its_holder_dies() {
    let job = Job::new("1:4", &["--epochs=50"]);
    let holder = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let (second, third) = (job.join(), job.join());
    job.steps(5);
    signal(&holder, "KILL");
    let dead = format!("process {} was lost", holder.id());
    until("the others go on", || job.generations().last().is_some_and(|generation| generation.members == 2));
    let why: Vec<String> = job.generations().into_iter().map(|generation| generation.why).collect();
    assert!(why.iter().all(|why| !why.contains(&dead)) || why.last().unwrap().contains(&dead), "{why:?}");
    ends(second, Some(0));
    ends(third, Some(0));
    job.run().equals(&job.calm(), 50);
}

#[test]
fn a_leaving_holder_hands_the_rendezvous_over() {
    let job = Job::new("1:4", &["--epochs=50"]);
    let holder = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let second = job.join();
    job.steps(5);
    signal(&holder, "TERM");
    ends(holder, Some(143));
    let third = job.join();
    ends(second, Some(0));
    ends(third, Some(0));
    job.run().equals(&job.calm(), 50);
}
