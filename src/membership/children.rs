//! The child processes of a launch.
//!
//! Four guarantees: Ctrl-C on the terminal reaches a child only through the launcher (each leads its own process
//! group); a killed launcher kills its children (the parent-death signal); the processes that a child started end with
//! it; and no signal goes to a reused process id (a child is signalled only until it is waited for). `exit_policy.rs`
//! decides when to send a signal.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};

use kiln_system::{Error, Result};
use signal_hook::consts::SIGKILL;

use super::exit_policy::Ending;
use super::output::{Sink, pass_on};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Signal(i32),
    Ended(usize),
}

/// The started processes; dropping this kills those that still run.
pub(super) struct Children {
    /// By rank; `None` once it has ended.
    children: Vec<Option<Child>>,
}

impl Children {
    /// Starts all of them, or none after an error.
    pub(super) fn start(commands: Vec<Command>) -> Result<Self> {
        let mut started = Self { children: Vec::with_capacity(commands.len()) };
        for mut command in commands {
            let child = command.spawn().map_err(|error| Error::io("start", command.get_program())(error))?;
            started.children.push(Some(child));
        }
        Ok(started)
    }

    /// Starts a thread per process that posts its end.
    pub(super) fn watch(&self, post: &Sender<Event>) -> io::Result<()> {
        for (rank, child) in self.children.iter().enumerate() {
            let Some(child) = child else { continue };
            let (process, post) = (child.id(), post.clone());
            thread::Builder::new().name(format!("watch-{rank}")).spawn(move || {
                wait_without_reaping(process);
                let _ = post.send(Event::Ended(rank));
            })?;
        }
        Ok(())
    }

    /// Starts two threads per process that forward its output. Returns the threads of standard error in rank order;
    /// they end after the others, with the line that most likely says why the process failed.
    pub(super) fn pass_on(
        &mut self,
        first: usize,
        stdout: &Sink,
        stderr: &Sink,
    ) -> io::Result<Vec<JoinHandle<Option<String>>>> {
        let alone = self.children.len() == 1;
        let mut threads = Vec::new();
        for (rank, child) in self.children.iter_mut().enumerate() {
            let (out, err) = child.as_mut().map_or((None, None), |child| (child.stdout.take(), child.stderr.take()));
            let prefix = if alone { String::new() } else { format!("[{}] ", first + rank) };
            let (sink, before) = (stdout.clone(), prefix.clone());
            let output = thread::Builder::new()
                .name(format!("stdout-{rank}"))
                .spawn(move || out.and_then(|stream| pass_on(stream, &before, &sink)))?;
            let sink = stderr.clone();
            threads.push(thread::Builder::new().name(format!("stderr-{rank}")).spawn(move || {
                let error_line = err.and_then(|stream| pass_on(stream, &prefix, &sink));
                let _ = output.join();
                error_line
            })?);
        }
        Ok(threads)
    }

    pub(super) fn is_alive(&self) -> bool {
        self.children.iter().any(Option::is_some)
    }

    pub(super) fn signal(&self, signal: i32) {
        self.children.iter().flatten().for_each(|child| signal_group(child, signal));
    }

    /// Waits for the process of `rank`, which has ended, and kills the processes that it started: an orphan would keep
    /// the output open, and the launcher waits for the end of the output.
    pub(super) fn reap(&mut self, rank: usize) -> Ending {
        let status = self.children[rank].take().and_then(|mut child| {
            signal_group(&child, SIGKILL);
            child.wait().ok()
        });
        let signal = status.and_then(|status| status.signal());
        let code = status.as_ref().and_then(ExitStatus::code).or(signal.map(|signal| 128 + signal));
        Ending { rank, code: code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1), signal }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.signal(SIGKILL);
        (0..self.children.len()).for_each(|rank| _ = self.reap(rank));
    }
}

pub fn command(program: &Path, arguments: &[OsString]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0);
    die_with_parent(&mut command);
    command
}

/// Sends `signal` to the group of a process that was not waited for yet.
fn signal_group(child: &Child, signal: i32) {
    // SAFETY: touches no memory. The id cannot be reused before the process is waited for. The group may be empty.
    unsafe { libc::kill(-(child.id() as libc::pid_t), signal) };
}

/// Waits until `process` has ended, but leaves it to [`Children::reap`], so that its id is not reused yet.
fn wait_without_reaping(process: u32) {
    // SAFETY: all zeros is a valid `siginfo_t`, and the call only fills it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        while libc::waitid(libc::P_PID, process, &mut info, libc::WEXITED | libc::WNOWAIT) != 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// Has the kernel kill the process when its launcher ends, even if that is killed.
fn die_with_parent(command: &mut Command) {
    let launcher = std::process::id() as libc::pid_t;
    let ask = move || {
        // SAFETY: system calls without memory. If the launcher ended before the first one, no signal would come.
        match unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, SIGKILL), libc::getppid()) } {
            (0, parent) if parent == launcher => Ok(()),
            (0, _) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `ask` allocates nothing and takes no lock, as required between fork and exec.
    unsafe { command.pre_exec(ask) };
}
