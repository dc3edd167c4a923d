//! `train launch`: several processes of this program on this machine, as one command.
//!
//! A launch behaves like one program: one Ctrl-C reaches every process once, one failure ends all, the first error is
//! the last line, and no process is left, even if the launcher is killed. `exit_policy.rs` decides when the others
//! must end, `children.rs` starts and signals processes, `output.rs` forwards their lines. The caller adds the
//! variables by which the processes find the rendezvous.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::signal_name;

use super::children::Children;
pub use super::children::{Event, command};
use super::exit_policy::{Ending, ExitPolicy};
use super::machines::Machines;
use super::output::Sink;
use kiln_system::stop::heard;
use kiln_system::{Error, Result};

/// How long processes have to end by themselves after one failed, and again after SIGTERM.
pub const GRACE: Duration = Duration::from_millis(2500);

#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    pub program: &'a Path,
    pub arguments: &'a [OsString],
    /// Additional environment variables, besides this process's and the ranks.
    pub variables: &'a [(String, String)],
    pub processes: usize,
    pub machines: &'a Machines,
    /// How long the others have to end by themselves after one failed, and again after SIGTERM; `None` if they can
    /// continue without it.
    pub grace: Option<Duration>,
}

impl Launch<'_> {
    /// Starts the processes, with the signals and the output of this one, and waits for all of them. The environment of
    /// each is this process's, `variables`, and the ranks from `machines`.
    ///
    /// Returns the exit code: 0 if all ended with 0, else the code of the process that failed first (128 + signal if a
    /// signal killed it), or the code with which all ended after a forwarded signal. Call it on a thread that lives as
    /// long as the process: the kernel kills the processes when the thread that started them ends.
    ///
    /// # Errors
    /// [`Error::Usage`] for no processes, [`Error::Io`] when one cannot be started (the others are killed).
    pub fn run(&self) -> Result<u8> {
        let (post, events) = channel();
        let signals = listen(post.clone()).map_err(Error::io("listen to signals of", "this process"))?;
        let (stdout, stderr) = (Arc::new(Mutex::new(io::stdout())), Arc::new(Mutex::new(io::stderr())));
        let code = self.run_with(&post, &events, stdout, stderr);
        signals.close();
        code
    }

    /// As [`Launch::run`] with given streams and events; the caller posts the signals.
    pub fn run_with(&self, post: &Sender<Event>, events: &Receiver<Event>, stdout: Sink, stderr: Sink) -> Result<u8> {
        if self.processes == 0 {
            return Err(Error::usage("nproc must be at least 1, got '0'; as in train launch --nproc 2 -- --epochs 1"));
        }
        let commands = (0..self.processes).map(|rank| self.command(rank)).collect();
        let policy = ExitPolicy::new(self.grace);
        let first = self.machines.first_rank(self.processes);
        let (policy, error_lines) = supervise(commands, first, post, events, stdout, stderr.clone(), policy)?;
        if let Some(failure) = policy.failure() {
            let line = describe(failure, first, error_lines[failure.rank].as_deref());
            // Standard error may be closed; there is still the exit code.
            let _ = writeln!(stderr.lock(), "train: {line}");
        }
        Ok(policy.code())
    }

    fn command(&self, rank: usize) -> Command {
        let mut command = command(self.program, self.arguments);
        command.envs(self.machines.variables(rank, self.processes));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Starts processes made by [`command`], with ranks from `first`, and supervises them until the last one has
/// ended. Returns the final state, and for each process the line that most likely says why it failed.
pub fn supervise(
    commands: Vec<Command>,
    first: usize,
    post: &Sender<Event>,
    events: &Receiver<Event>,
    stdout: Sink,
    stderr: Sink,
    mut policy: ExitPolicy,
) -> Result<(ExitPolicy, Vec<Option<String>>)> {
    let threads = |error| Error::io("start threads for", "the processes")(error);
    let mut children = Children::start(commands)?;
    children.watch(post).map_err(threads)?;
    let forwarding = children.pass_on(first, &stdout, &stderr).map_err(threads)?;
    while children.is_alive() {
        let event = match policy.time_left(Instant::now()) {
            Some(time) => events.recv_timeout(time),
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Signal(signal)) => {
                policy.forwarded(signal);
                children.signal(signal);
            }
            Ok(Event::Ended(rank)) => policy.ended(children.reap(rank), Instant::now()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if let Some(signal) = policy.due(Instant::now()) {
            children.signal(signal);
        }
    }
    Ok((policy, forwarding.into_iter().map(|thread| thread.join().ok().flatten()).collect()))
}

fn describe(Ending { rank, code, signal }: Ending, first: usize, error_line: Option<&str>) -> String {
    let how = match signal {
        Some(signal) => format!("killed by {}", signal_name(signal).map_or(format!("signal {signal}"), str::to_owned)),
        None => format!("exit code {code}"),
    };
    let why = error_line.map(|line| format!(": {line}")).unwrap_or_default();
    format!("rank {} failed first ({how}){why}", first + rank)
}

/// Posts the signals to forward, until the handle is closed.
///
/// # Errors
/// That of the system, if the signals cannot be handled.
pub fn listen(post: Sender<Event>) -> io::Result<Handle> {
    let mut signals = Signals::new(heard())?;
    let handle = signals.handle();
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let _ = post.send(Event::Signal(signal));
        }
    })?;
    Ok(handle)
}
