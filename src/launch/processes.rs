//! `train launch`: several processes of this program on this machine, as one command.
//!
//! For people a launch is one program: one Ctrl-C reaches every process once, one failure ends all, the first error is
//! the last line, and nothing stays behind, even if the launcher itself is killed. When the others must end is decided
//! in `course.rs`, the processes are kept in `family.rs`, their lines are the business of `output.rs`; how they find
//! each other is in the variables that the caller adds.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::signal_name;

use super::course::{Course, Ending};
use super::family::Family;
pub use super::family::{Event, command};
use super::output::Sink;
use crate::error::{Error, Result};

/// How long processes have to end by themselves after one failed, and again after SIGTERM.
pub const GRACE: Duration = Duration::from_millis(2500);

/// Starts this program `processes` times with `arguments` and waits for all of them. Each gets `variables`, `RANK`,
/// `LOCAL_RANK`, `WORLD_SIZE` and `LOCAL_WORLD_SIZE`.
///
/// Returns the exit code: 0 if all ended with 0, else that of the process that failed first (128 + signal if a signal
/// killed it), or the code with which all ended after a forwarded signal. Call it on a thread that lives as long as
/// the process: the kernel kills the processes when the thread that started them ends.
///
/// # Errors
/// [`Error::Usage`] for no processes at all, [`Error::Io`] when one cannot be started (the others are killed).
pub fn launch(processes: usize, arguments: &[OsString], variables: &[(String, String)], elastic: bool) -> Result<u8> {
    let program = std::env::current_exe().map_err(Error::io("find", "train"))?;
    let grace = (!elastic).then_some(GRACE);
    Launch { program: &program, arguments, variables, processes, grace }.run()
}

/// Several processes of one program.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// What is started.
    pub program: &'a Path,
    /// Its arguments, the same for all.
    pub arguments: &'a [OsString],
    /// Variables beside those of this process and the ranks.
    pub variables: &'a [(String, String)],
    /// How many times.
    pub processes: usize,
    /// How long the others have to end by themselves after one failed, and again after SIGTERM.
    /// None where they do not need each other.
    pub grace: Option<Duration>,
}

impl Launch<'_> {
    /// As [`launch`]: signals are those of this process, output goes to its own.
    pub fn run(&self) -> Result<u8> {
        let (post, events) = channel();
        let signals = listen(post.clone()).map_err(Error::io("listen to signals of", "this process"))?;
        let (stdout, stderr) = (Arc::new(Mutex::new(io::stdout())), Arc::new(Mutex::new(io::stderr())));
        let code = self.run_with(&post, &events, stdout, stderr);
        signals.close();
        code
    }

    /// As [`Launch::run`] with given streams and events, of which the caller posts the signals.
    pub fn run_with(&self, post: &Sender<Event>, events: &Receiver<Event>, stdout: Sink, stderr: Sink) -> Result<u8> {
        if self.processes == 0 {
            return Err(Error::usage("nproc must be at least 1, got '0'; as in train launch --nproc 2 -- --epochs 1"));
        }
        let commands = (0..self.processes).map(|rank| self.command(rank)).collect();
        let course = self.grace.map_or_else(Course::elastic, Course::new);
        let (course, last_words) = accompany(commands, post, events, stdout, stderr.clone(), course)?;
        if let Some(failure) = course.failure() {
            let line = describe(failure, last_words[failure.rank].as_deref());
            // Standard error may be closed; the exit code tells too.
            let _ = writeln!(stderr.lock().unwrap_or_else(PoisonError::into_inner), "train: {line}");
        }
        Ok(course.code())
    }

    /// The process of `rank`, not yet started.
    fn command(&self, rank: usize) -> Command {
        let (rank, size) = (rank.to_string(), self.processes.to_string());
        let mut command = command(self.program, self.arguments);
        command.envs([("RANK", &rank), ("LOCAL_RANK", &rank), ("WORLD_SIZE", &size), ("LOCAL_WORLD_SIZE", &size)]);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Starts processes made by [`command`] and stays with them until the last one has ended. Returns how that went, and
/// the last words of each: the line that most likely tells why it failed.
///
/// # Errors
/// [`Error::Io`] when one cannot be started (the others are killed).
pub fn accompany(
    commands: Vec<Command>,
    post: &Sender<Event>,
    events: &Receiver<Event>,
    stdout: Sink,
    stderr: Sink,
    course: Course,
) -> Result<(Course, Vec<Option<String>>)> {
    let threads = |error| Error::io("start threads for", "the processes")(error);
    let mut family = Family::start(commands)?;
    family.watch(post).map_err(threads)?;
    let pumps = family.pass_on(&stdout, &stderr).map_err(threads)?;
    let course = attend(&mut family, events, course);
    Ok((course, pumps.into_iter().map(|pump| pump.join().ok().flatten()).collect()))
}

/// Acts on events until the last process has ended.
fn attend(family: &mut Family, events: &Receiver<Event>, mut course: Course) -> Course {
    while family.is_alive() {
        let event = match course.patience(Instant::now()) {
            Some(patience) => events.recv_timeout(patience),
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Signal(signal)) => {
                course.forwarded(signal);
                family.signal(signal);
            }
            Ok(Event::Ended(rank)) => course.ended(family.bury(rank), Instant::now()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if let Some(signal) = course.due(Instant::now()) {
            family.signal(signal);
        }
    }
    course
}

/// The last line of a launch that failed.
fn describe(Ending { rank, code, signal }: Ending, last_words: Option<&str>) -> String {
    let how = match signal {
        Some(signal) => format!("killed by {}", signal_name(signal).map_or(format!("signal {signal}"), str::to_owned)),
        None => format!("exit code {code}"),
    };
    let why = last_words.map(|line| format!(": {line}")).unwrap_or_default();
    format!("rank {rank} failed first ({how}){why}")
}

/// Posts the signals that are forwarded, until the handle is closed.
///
/// # Errors
/// The system's, when it does not let this process listen.
pub fn listen(post: Sender<Event>) -> io::Result<Handle> {
    let mut wanted = vec![SIGINT, SIGTERM, SIGUSR1];
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted)?;
    let handle = signals.handle();
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let _ = post.send(Event::Signal(signal));
        }
    })?;
    Ok(handle)
}

/// Whether whoever started this process asked that it ignores `signal`, as `nohup` does with SIGHUP.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: all zeros is a valid `sigaction`, and the call only fills it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}
