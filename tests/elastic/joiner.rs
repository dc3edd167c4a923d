//! A process that comes over a slow link: the others go on computing until it is connected with them, or without it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use super::*;

/// What a process says of itself is longer than all else that it says while it comes.
const INTRODUCTION: usize = 1000;

/// What has happened on a link.
#[derive(Default)]
struct Passage {
    has_asked: bool,
    is_open: bool,
}

/// A link to the rendezvous that holds back every answer once the process has said who it is, until it is opened.
struct Link {
    port: u16,
    passage: Arc<(Mutex<Passage>, Condvar)>,
}

impl Link {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Self { port: listener.local_addr().unwrap().port(), passage: Arc::default() };
        let passage = link.passage.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let (back, ahead) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                let [questions, answers] = [passage.clone(), passage.clone()];
                thread::spawn(move || {
                    pump(near, far, |size| questions.0.lock().unwrap().has_asked |= size >= INTRODUCTION);
                });
                thread::spawn(move || {
                    pump(back, ahead, |_| {
                        let is_held = |passage: &mut Passage| passage.has_asked && !passage.is_open;
                        drop(answers.1.wait_while(answers.0.lock().unwrap(), is_held).unwrap());
                    });
                });
            }
        });
        link
    }

    fn has_asked(&self) -> bool {
        self.passage.0.lock().unwrap().has_asked
    }

    fn open(&self) {
        self.passage.0.lock().unwrap().is_open = true;
        self.passage.1.notify_all();
    }
}

/// Passes bytes on until either side ends; `before` hears how many come together.
fn pump(mut from: TcpStream, mut to: TcpStream, mut before: impl FnMut(usize)) {
    let mut bytes = [0; 1 << 16];
    while let Ok(size) = from.read(&mut bytes) {
        before(size);
        if size == 0 || to.write_all(&bytes[..size]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A process that nobody takes for lost though it is not heard for long.
fn member(job: &Job, port: u16, timeout: &str) -> Child {
    let mut command = job.member();
    command.env("KILN_RENDEZVOUS_HELD", "elsewhere").args(["--lost-after=300", timeout]);
    command.arg(format!("--dist-url=tcp://127.0.0.1:{port}"));
    spawn(command)
}

/// The lines of a process as they come.
fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    receiver
}

#[test]
fn the_others_compute_until_a_process_behind_a_slow_link_is_connected() {
    let job = Job::new("1:4", &ENDLESS);
    let mut rendezvous = job.rendezvous();
    let first = member(&job, job.port, "--timeout=100");
    until("the run begins", || !job.run().steps().is_empty());
    let second = member(&job, job.port, "--timeout=100");
    job.has_members(2);
    let link = Link::to(job.port);
    let third = member(&job, link.port, "--timeout=100");
    until("it has come", || link.has_asked());
    job.steps(20);
    assert_eq!(job.generations().len(), 2, "nobody waits for it");
    link.open();
    job.has_members(3);
    job.steps(3);
    job.stops([first, second, third]);
    kill(&mut rendezvous);
}

#[test]
fn a_process_that_is_not_connected_in_time_stays_in_reserve() {
    let job = Job::new("1:4", &["--epochs=50000"]);
    let mut rendezvous = job.rendezvous();
    let first = member(&job, job.port, "--timeout=3");
    until("the run begins", || !job.run().steps().is_empty());
    let link = Link::to(job.port);
    let mut second = member(&job, link.port, "--timeout=3");
    let said = lines(rendezvous.stderr.take().unwrap());
    let name = format!("process {} stays in reserve for 30.0 s, and the run continues without it: ", second.id());
    until("it is left in reserve", || said.try_iter().any(|line| line.contains(&name)));
    job.steps(3);
    assert_eq!(job.generations().len(), 1);
    kill(&mut second);
    signal(&first, "TERM");
    ends(first, Some(143));
    kill(&mut rendezvous);
}

#[test]
fn a_process_that_is_never_answered_gives_up() {
    let job = Job::new("1:4", &["--epochs=50000"]);
    let mut rendezvous = job.rendezvous();
    let link = Link::to(job.port);
    let address = format!("--dist-url=tcp://127.0.0.1:{}", link.port);
    let lines = ends(job.start_elsewhere(&["--elastic-timeout=3", &address]), Some(75)).concat();
    assert!(link.has_asked(), "{lines}");
    assert!(lines.contains("could not be reached for 3.0 s: no answer to its introduction for"), "{lines}");
    kill(&mut rendezvous);
}
