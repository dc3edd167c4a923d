//! The rendezvous of an elastic run: held by a trainer or alone, lost, and held again.

use std::io::{BufRead, BufReader};

use kiln_membership::rendezvous::wire::Purpose;
use kiln_membership::rendezvous::{Terms, query};

use super::strangers::{SECRET, terms};
use super::*;
use crate::command::succeeded;

#[test]
fn the_rendezvous_moves_to_another_process_when_its_holder_dies() {
    let job = Job::new("1:4", &ENDLESS);
    let holder = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let (second, third) = (job.join(), job.join());
    job.steps(5);
    signal(&holder, "KILL");
    ends(holder, None);
    until("the others go on", || job.generations().last().is_some_and(|generation| generation.members == 2));
    let why: Vec<String> = job.generations().into_iter().map(|generation| generation.why).collect();
    for survivor in [&second, &third] {
        let lost = format!("process {} was lost", survivor.id());
        assert!(why.iter().all(|why| !why.contains(&lost)), "{why:?}");
    }
    job.steps(3);
    job.stops([second, third]);
}

#[test]
fn of_three_addresses_the_one_that_leads_may_be_lost() {
    let job = Job::new("1:3", &ENDLESS);
    let places = [1, 2, 3].map(|host| format!("127.0.0.{host}:{}", job.port));
    let url = format!("--dist-url=tcp://{}", places.join(","));
    let start = |place: &String| {
        let mut member = job.member();
        let child = spawn(member.env("KILN_JOB_SECRET", SECRET).args([&url, "--lost-after=6"]));
        until("it holds an address", || std::net::TcpStream::connect(place).is_ok());
        child
    };
    let mut holders: Vec<Child> = places.iter().map(start).collect();
    job.has_members(3);
    let mut members = job.place.bare(&["members", &url]);
    let table = succeeded(&members.env("KILN_JOB_SECRET", SECRET).output().unwrap());
    assert!(holders.iter().all(|holder| table.contains(&format!(" {} ", holder.id()))), "{table}");
    let terms = Terms { addresses: places.to_vec(), ..terms(SECRET) };
    let leads = |place: &String| query(place, &terms, &Purpose::Look).is_ok();
    let leader = holders.remove(places.iter().position(leads).unwrap());
    signal(&leader, "KILL");
    ends(leader, None);
    job.has_members(2);
    let why = job.generations().pop().unwrap().why;
    assert!(why.contains("did not come back to the restarted rendezvous"), "{why}");
    job.steps(3);
    job.stops(holders);
}

#[test]
fn a_leaving_holder_hands_the_rendezvous_over() {
    let job = Job::new("1:4", &ENDLESS);
    let holder = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let second = job.join();
    job.steps(5);
    signal(&holder, "TERM");
    ends(holder, Some(143));
    let third = job.join();
    job.steps(3);
    job.stops([second, third]);
}

#[test]
fn without_a_rendezvous_nobody_computes_for_long_and_all_give_up_in_the_end() {
    let job = Job::new("1:4", &["--epochs=5000"]);
    let mut rendezvous = job.rendezvous();
    let first = job.start_elsewhere(&["--elastic-timeout=3"]);
    until("the run begins", || !job.run().steps().is_empty());
    let second = job.start_elsewhere(&["--elastic-timeout=3"]);
    until("both compute", || job.generations().len() == 2);
    kill(&mut rendezvous);
    std::thread::sleep(LOST_AFTER);
    let paused = job.run().steps().len();
    std::thread::sleep(LOST_AFTER);
    assert!(job.run().steps().len() <= paused + 1, "a step without a lease");
    for child in [first, second] {
        let lines = ends(child, Some(75));
        assert!(lines.concat().contains("--elastic-timeout"), "{lines:?}");
    }
}

#[test]
fn a_rendezvous_that_is_started_again_takes_over_from_a_trainer() {
    let job = Job::new("1:4", &ENDLESS);
    let mut rendezvous = job.rendezvous();
    let first = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let second = job.join();
    kill(&mut rendezvous);
    let address = format!("127.0.0.1:{}", job.port);
    until("a trainer holds it", || std::net::TcpStream::connect(&address).is_ok());
    let before = job.generations().len();
    let mut rendezvous = spawn(job.place.bare(&["rendezvous", "--bind", &address]));
    let mut line = String::new();
    BufReader::new(rendezvous.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("rendezvous  "), "{line}");
    job.steps(10);
    assert_eq!(job.generations().len(), before, "the members told the new one where they are");
    let twice = job.place.bare(&["rendezvous", "--bind", &address]).output().unwrap();
    assert_eq!(twice.status.code(), Some(2));
    assert!(errors(&twice).concat().contains("no trainer holds it"));
    job.stops([first, second]);
    kill(&mut rendezvous);
}

#[test]
fn members_are_shown_and_one_of_them_leaves_when_asked() {
    let job = Job::new("1:4", &ENDLESS);
    assert_eq!(job.members(&[]).status.code(), Some(75), "nobody is there");
    let first = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let second = job.join();
    let table = succeeded(&job.members(&[]));
    for (child, replicas) in [(&first, "0-3"), (&second, "4-7")] {
        let line = table.lines().rfind(|line| line.contains(&format!(" {} ", child.id())));
        assert!(line.is_some_and(|line| line.contains(replicas)), "{table}");
    }
    assert!(table.contains("generation  2, running"), "{table}");
    let wrong = job.members(&["--drain=2"]);
    assert_eq!(wrong.status.code(), Some(2));
    succeeded(&job.members(&["--drain=0"]));
    // Nobody signalled it.
    ends(first, Some(0));
    job.steps(3);
    job.stops([second]);
}

#[test]
fn processes_of_a_launch_may_die() {
    let job = Job::new("1:3", &ENDLESS);
    let mut line: Vec<&str> = job.line.iter().map(String::as_str).collect();
    line.extend(["--elastic=1:3", "--heartbeat=0.1", "--lost-after=1.5"]);
    let launcher = spawn(job.place.launch(3, "run", &line));
    until("all compute", || job.generations().last().is_some_and(|generation| generation.members == 3));
    job.steps(3);
    let victims = Command::new("pkill").args(["-KILL", "-o", "-P", &launcher.id().to_string()]).status().unwrap();
    assert!(victims.success());
    job.has_members(2);
    job.steps(3);
    job.stops([launcher]);
}
