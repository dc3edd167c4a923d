//! Elastic runs: processes and devices come and go, and the experiment does not notice.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use kiln::metrics::{GenerationRecord, Record};

use crate::command::{Run, Workplace, errors, free_port, kill, signal, until, wait};

mod chaos;
mod completion;
mod joiner;
mod membership;
mod nccl;
mod service;
mod stages;
mod stopped;
mod stranded;
mod strangers;

/// Eight replicas of one image each: as many steps per epoch as the other small runs have. On `flex`, where they take
/// the least time.
const EIGHT: [&str; 6] = [
    "--world-size=8",
    "--batch-size=1",
    "--deterministic",
    "--threads=1",
    "--checkpoint-every=10steps",
    "--backend=flex",
];
/// A training that goes on until the test stops it, however slow the machine is.
const ENDLESS: [&str; 1] = ["--epochs=5000"];
/// A process that is silent for so long is lost.
const LOST_AFTER: Duration = Duration::from_millis(1500);

/// A run that processes come to and leave.
struct Job {
    place: Workplace,
    port: u16,
    elastic: &'static str,
    line: Vec<String>,
}

impl Job {
    fn new(elastic: &'static str, line: &[&str]) -> Self {
        let line = EIGHT.iter().chain(line).map(ToString::to_string).collect();
        Self { place: Workplace::new(), port: free_port(), elastic, line }
    }

    fn run(&self) -> Run {
        self.place.run("run")
    }

    /// The same training in one process that nobody disturbs.
    fn calm(&self, more: &[&str]) -> Run {
        let line: Vec<&str> = self.line.iter().map(String::as_str).chain(more.iter().copied()).collect();
        self.place.train("calm", &line);
        self.place.run("calm")
    }

    /// Stops the members one after the other: the run has then done what a calm one does in as many steps.
    #[track_caller]
    fn stops(&self, members: impl IntoIterator<Item = Child>) {
        for child in members {
            signal(&child, "TERM");
            ends(child, Some(143));
        }
        self.is_calm();
    }

    /// A run that was stopped has done what a calm one does in as many steps.
    #[track_caller]
    fn is_calm(&self) {
        let reached = format!("--max-steps={}", self.run().latest_step());
        self.run().goes_like(&self.calm(&[&reached]));
    }

    /// The command of a process that comes.
    fn member(&self) -> Command {
        let line: Vec<&str> = self.line.iter().map(String::as_str).collect();
        let mut command = self.place.small("run", &line);
        command.args(["--elastic", self.elastic, "--heartbeat=0.1", "--elastic-timeout=20"]);
        command.arg(format!("--lost-after={}", LOST_AFTER.as_secs_f64()));
        command.arg(format!("--dist-url=tcp://127.0.0.1:{}", self.port));
        command
    }

    fn start(&self) -> Child {
        spawn(self.member())
    }

    /// A process that does not take the rendezvous over, like those of another machine.
    fn start_elsewhere(&self, arguments: &[&str]) -> Child {
        let mut command = self.member();
        command.env("KILN_RENDEZVOUS_HELD", "elsewhere").args(arguments);
        spawn(command)
    }

    /// The rendezvous alone.
    fn rendezvous(&self) -> Child {
        let address = format!("127.0.0.1:{}", self.port);
        let child = spawn(self.place.bare(&["rendezvous", "--bind", &address]));
        until("the rendezvous listens", || std::net::TcpStream::connect(&address).is_ok());
        child
    }

    /// Waits until so many processes compute.
    fn has_members(&self, count: usize) {
        until("all compute", || self.generations().last().is_some_and(|generation| generation.members == count));
    }

    /// What `train members` prints.
    fn members(&self, arguments: &[&str]) -> Output {
        let url = format!("--dist-url=tcp://127.0.0.1:{}", self.port);
        self.place.bare(&[&["members", &url], arguments].concat()).output().unwrap()
    }

    /// Starts a process and waits until it takes part.
    fn join(&self) -> Child {
        let before = self.generations().len();
        let child = self.start();
        until("the process takes part", || {
            let name = format!("process {} joined", child.id());
            self.generations()[before..].iter().any(|generation| generation.why.contains(&name))
        });
        child
    }

    fn generations(&self) -> Vec<GenerationRecord> {
        let generation = |record| if let Record::Generation(it) = record { Some(it) } else { None };
        self.run().records().into_iter().filter_map(generation).collect()
    }

    /// Waits until `count` more steps are done.
    fn steps(&self, count: usize) {
        let reached = self.run().steps().len() + count;
        until("steps are done", || self.run().steps().len() >= reached);
    }
}

fn spawn(mut command: impl std::borrow::BorrowMut<Command>) -> Child {
    let child = command.borrow_mut().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // What a process prints is read at its end. In a pipe of the usual size there is room for the lines of 400 epochs,
    // and then the process waits.
    let pipe = child.stdout.as_ref().unwrap();
    // SAFETY: the call reads and writes no memory.
    assert!(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20) } >= 1 << 20);
    child
}

/// The process ends with this code.
#[track_caller]
fn ends(mut child: Child, code: Option<i32>) -> Vec<String> {
    let ended = wait(&mut child);
    let lines = errors(&child.wait_with_output().unwrap());
    assert_eq!(ended, code, "{lines:?}");
    lines
}
