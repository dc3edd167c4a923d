//! Launches of small shell scripts. The test binary itself plays the launcher where signals and death are real.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use kiln_membership::Machines;
use kiln_membership::output::Sink;
use kiln_membership::processes::{Event, Launch};
use kiln_system::Error;
use parking_lot::Mutex;
use signal_hook::consts::{SIGKILL, SIGTERM, SIGUSR1};

/// Ends a test that would hang.
const LIMIT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

fn one_machine() -> Machines {
    Machines::new(1, 0, None, 29_500).unwrap()
}

struct Outcome {
    code: u8,
    stdout: String,
    stderr: String,
}

/// A script that runs `processes` times.
fn start(
    script: &str,
    processes: usize,
    grace: Duration,
) -> (Sender<Event>, Arc<Mutex<Vec<u8>>>, thread::JoinHandle<Outcome>) {
    let (post, events) = channel();
    let (stdout, stderr) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (arguments, sender, seen) = ([OsString::from("-c"), script.into()], post.clone(), stdout.clone());
    let running = thread::spawn(move || {
        let variables = [("MASTER_PORT".to_string(), "7".to_string())];
        let launch = Launch {
            program: Path::new("/bin/sh"),
            arguments: &arguments,
            variables: &variables,
            processes,
            machines: &one_machine(),
            grace: Some(grace),
        };
        let code = launch.run_with(&post, &events, stdout.clone() as Sink, stderr.clone() as Sink).unwrap();
        let text = |sink: &Mutex<Vec<u8>>| String::from_utf8_lossy(&sink.lock()).into_owned();
        Outcome { code, stdout: text(&stdout), stderr: text(&stderr) }
    });
    (sender, seen, running)
}

fn run(script: &str, processes: usize, grace: Duration) -> Outcome {
    start(script, processes, grace).2.join().unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "{what} did not come true in {LIMIT:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn runs(process: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // One that has ended and that nobody has waited for is a zombie.
    state
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next())
        .is_some_and(|state| state != 'Z' && state != 'X')
}

#[test]
fn every_process_gets_its_rank_and_every_line_tells_it() {
    let outcome = run("echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_PORT; echo e$RANK >&2", 3, LIMIT);
    assert_eq!(outcome.code, 0);
    assert_eq!(sorted(&outcome.stdout), ["[0] 0/3 0/3 7", "[1] 1/3 1/3 7", "[2] 2/3 2/3 7"]);
    assert_eq!(sorted(&outcome.stderr), ["[0] e0", "[1] e1", "[2] e2"]);
}

#[test]
fn a_single_process_needs_no_prefix() {
    assert_eq!(run("echo alone", 1, LIMIT).stdout, "alone\n");
}

#[test]
fn half_lines_wait_for_their_other_half() {
    let outcome = run("printf 'one '; printf 'two\\nlast'", 2, LIMIT);
    assert_eq!(sorted(&outcome.stdout), ["[0] last", "[0] one two", "[1] last", "[1] one two"]);
}

#[test]
fn many_lines_pass_whole() {
    let outcome = run("yes \"$RANK$RANK$RANK$RANK\" | head -n 100000", 2, LIMIT);
    for line in ["[0] 0000", "[1] 1111"] {
        assert_eq!(outcome.stdout.lines().filter(|seen| *seen == line).count(), 100_000);
    }
    assert_eq!(outcome.stdout.lines().count(), 200_000);
}

#[test]
fn the_first_failure_gives_the_code_and_the_last_line() {
    let script =
        "if [ $RANK = 2 ]; then echo 'train: warning' >&2; echo 'train: no space left' >&2; exit 3; fi; exec sleep 60";
    let outcome = run(script, 3, SHORT);
    assert_eq!(outcome.code, 3);
    assert_eq!(outcome.stderr.lines().last().unwrap(), "train: rank 2 failed first (exit code 3): no space left");
}

#[test]
fn a_killed_process_is_told_by_its_signal() {
    let outcome = run("[ $RANK = 1 ] && kill -9 $$; exec sleep 60", 2, SHORT);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (137, "train: rank 1 failed first (killed by SIGKILL)\n"));
}

#[test]
fn after_a_failure_the_others_may_end_by_themselves() {
    let outcome = run("[ $RANK = 0 ] && exit 1; while [ $((n += 1)) -lt 9999 ]; do :; done; echo saved", 2, LIMIT);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, "[1] saved\n"));
}

#[test]
fn a_process_that_ignores_sigterm_is_killed() {
    let outcome = run("[ $RANK = 0 ] && exit 1; trap '' TERM; echo up; while :; do sleep 60; done", 2, SHORT);
    assert_eq!(outcome.code, 1);
}

#[test]
fn what_a_process_leaves_behind_ends_with_it() {
    let outcome = run("sleep 60 & echo $!", 1, LIMIT);
    assert_eq!(outcome.code, 0);
    until("the end of the left process", || !runs(outcome.stdout.trim()));
}

#[test]
fn a_signal_reaches_every_process_once_and_its_code_is_kept() {
    // Not SIGINT: a shell does not trap what its parent ignores, as whatever `&` starts in a script does.
    let script = "trap 'echo got; exit 138' USR1; echo up; while :; do sleep 1 & wait; done";
    let (post, seen, running) = start(script, 2, LIMIT);
    until("both are up", || String::from_utf8_lossy(&seen.lock()).matches("up").count() == 2);
    post.send(Event::Signal(SIGUSR1)).unwrap();
    let outcome = running.join().unwrap();
    assert_eq!((outcome.code, outcome.stderr.as_str()), (138, ""));
    assert_eq!(outcome.stdout.matches("got").count(), 2);
}

#[test]
fn a_second_signal_is_forwarded_too() {
    // It speaks when the next trap is set, or a quick second signal would meet the first one.
    let script = "trap 'trap \"exit 143\" TERM; echo first' TERM; echo up; while :; do sleep 1; done";
    let (post, seen, running) = start(script, 2, LIMIT);
    for word in ["up", "first"] {
        until(word, || String::from_utf8_lossy(&seen.lock()).matches(word).count() == 2);
        post.send(Event::Signal(SIGTERM)).unwrap();
    }
    assert_eq!(running.join().unwrap().code, 143);
}

#[test]
fn a_program_that_cannot_be_started_is_an_error() {
    let (post, events) = channel();
    let sink: Sink = Arc::new(Mutex::new(Vec::new()));
    let program = Path::new("/no/such/train");
    let machines = one_machine();
    let absent =
        Launch { program, arguments: &[], variables: &[], processes: 2, machines: &machines, grace: Some(LIMIT) };
    let error = absent.run_with(&post, &events, sink.clone(), sink).unwrap_err();
    assert!(error.to_string().starts_with("cannot start '/no/such/train': "), "{error}");
}

#[test]
fn no_processes_are_too_few() {
    let (program, machines) = (Path::new("/bin/sh"), one_machine());
    let none = Launch { program, arguments: &[], variables: &[], processes: 0, machines: &machines, grace: None };
    assert!(matches!(none.run(), Err(Error::Usage(_))));
}

/// A launcher with a life of its own.
struct Launcher {
    process: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    _stderr: ChildStderr,
}

const SCRIPT: &str = "KILN_TEST_LAUNCHES";

#[test]
#[ignore = "not a test: the launcher that other tests start"]
fn the_launcher() {
    let Some(script) = std::env::var_os(SCRIPT) else { return };
    let (program, arguments) = (Path::new("/bin/sh"), [OsString::from("-c"), script]);
    let machines = one_machine();
    let launch = Launch {
        program,
        arguments: &arguments,
        variables: &[],
        processes: 2,
        machines: &machines,
        grace: Some(LIMIT),
    };
    std::process::exit(launch.run().unwrap().into());
}

impl Launcher {
    fn start(script: &str) -> Self {
        let name = concat!(module_path!(), "::the_launcher").split_once("::").unwrap().1;
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--ignored", "--nocapture", "--test-threads=2"])
            .env(SCRIPT, script)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdout, _stderr) = (process.stdout.take().unwrap(), process.stderr.take().unwrap());
        Self { process, stdout: BufReader::new(stdout).lines(), _stderr }
    }

    /// The words of both ranks behind their prefixes.
    fn words(&mut self) -> Vec<String> {
        let of_ranks = |line: String| line.strip_prefix('[').map(|line| line[3..].to_string());
        self.stdout.by_ref().map(Result::unwrap).filter_map(of_ranks).take(2).collect()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: touches no memory; the process has not been waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as libc::pid_t, signal) }, 0);
    }
}

#[test]
fn signals_of_the_launcher_reach_every_process() {
    let mut launcher =
        Launcher::start("trap 'echo saved' USR1; trap 'exit 143' TERM; echo up; while :; do sleep 1; done");
    assert_eq!(launcher.words(), ["up", "up"]);
    launcher.signal(SIGUSR1);
    assert_eq!(launcher.words(), ["saved", "saved"]);
    launcher.signal(SIGTERM);
    assert_eq!(launcher.process.wait().unwrap().code(), Some(143));
}

#[test]
fn a_killed_launcher_leaves_no_orphan() {
    let mut launcher = Launcher::start("echo $$; exec sleep 60");
    let processes = launcher.words();
    assert!(processes.len() == 2 && processes.iter().all(|process| runs(process)), "{processes:?}");
    launcher.signal(SIGKILL);
    launcher.process.wait().unwrap();
    until("the end of all processes", || !processes.iter().any(|process| runs(process)));
}
