//! The processes of a launch, from fork to burial.
//!
//! Four promises hold here: Ctrl-C of the terminal does not reach them past the launcher (each leads a process group
//! of its own); a killed launcher takes them along (the parent-death signal); whatever they started themselves ends
//! with them; and no signal ever goes to a process number that was given away (a process is signalled only until it
//! is waited for). When which signal is due is not decided here.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};

use signal_hook::consts::SIGKILL;

use super::course::Ending;
use super::output::{Sink, pass_on};
use crate::error::{Error, Result};

/// What the launcher waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The launcher got a signal.
    Signal(i32),
    /// The process of this rank ended.
    Ended(usize),
}

/// The processes that were started; those that still run when it goes out of scope are killed.
pub(super) struct Family {
    /// By rank; `None` once it has ended.
    children: Vec<Option<Child>>,
}

impl Family {
    /// Starts them all, or none: an error leaves no process behind.
    pub(super) fn start(commands: Vec<Command>) -> Result<Self> {
        let mut family = Self { children: Vec::with_capacity(commands.len()) };
        for mut command in commands {
            let child = command.spawn().map_err(|error| Error::io("start", command.get_program())(error))?;
            family.children.push(Some(child));
        }
        Ok(family)
    }

    /// One thread per process posts its end.
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

    /// Two threads per process pass on what it prints; in rank order, those of standard error, which end after the
    /// others and know the last words.
    pub(super) fn pass_on(&mut self, stdout: &Sink, stderr: &Sink) -> io::Result<Vec<JoinHandle<Option<String>>>> {
        let alone = self.children.len() == 1;
        let mut pumps = Vec::new();
        for (rank, child) in self.children.iter_mut().enumerate() {
            let (out, err) = child.as_mut().map_or((None, None), |child| (child.stdout.take(), child.stderr.take()));
            let prefix = if alone { String::new() } else { format!("[{rank}] ") };
            let (sink, before) = (stdout.clone(), prefix.clone());
            let output = thread::Builder::new()
                .name(format!("stdout-{rank}"))
                .spawn(move || out.and_then(|stream| pass_on(stream, &before, &sink)))?;
            let sink = stderr.clone();
            pumps.push(thread::Builder::new().name(format!("stderr-{rank}")).spawn(move || {
                let last_words = err.and_then(|stream| pass_on(stream, &prefix, &sink));
                let _ = output.join();
                last_words
            })?);
        }
        Ok(pumps)
    }

    /// Whether any has not ended yet.
    pub(super) fn is_alive(&self) -> bool {
        self.children.iter().any(Option::is_some)
    }

    /// Sends `signal` to all that have not ended.
    pub(super) fn signal(&self, signal: i32) {
        self.children.iter().flatten().for_each(|child| signal_group(child, signal));
    }

    /// Ends what the process of `rank`, which has ended, has started itself: it would be an orphan, and keep the
    /// launcher waiting for the end of its output.
    pub(super) fn bury(&mut self, rank: usize) -> Ending {
        let status = self.children[rank].take().and_then(|mut child| {
            signal_group(&child, SIGKILL);
            child.wait().ok()
        });
        let signal = status.and_then(|status| status.signal());
        let code = status.as_ref().and_then(ExitStatus::code).or(signal.map(|signal| 128 + signal));
        Ending { rank, code: code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1), signal }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.signal(SIGKILL);
        (0..self.children.len()).for_each(|rank| _ = self.bury(rank));
    }
}

/// `program` with `arguments`, not yet started.
pub fn command(program: &Path, arguments: &[OsString]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own: Ctrl-C on the terminal reaches it only through the launcher, and only once.
    command.process_group(0);
    die_with_parent(&mut command);
    command
}

/// Sends `signal` to a process that was not waited for, and to what it has started.
fn signal_group(child: &Child, signal: i32) {
    // SAFETY: touches no memory. The number is still this group's, as its leader has not been waited for. A group
    // that is gone is none of our concern.
    unsafe { libc::kill(-(child.id() as libc::pid_t), signal) };
}

/// Waits until `process` has ended, and leaves it to [`Family::bury`], so that its number is not given away yet.
fn wait_without_reaping(process: u32) {
    // SAFETY: all zeros is a valid `siginfo_t`, and the call only fills it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        while libc::waitid(libc::P_PID, process, &mut info, libc::WEXITED | libc::WNOWAIT) != 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// The kernel kills the process when its launcher ends, however that ends.
fn die_with_parent(command: &mut Command) {
    let launcher = std::process::id() as libc::pid_t;
    let ask = move || {
        // SAFETY: system calls without memory. The launcher may have ended before the first; then nobody is told.
        match unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, SIGKILL), libc::getppid()) } {
            (0, parent) if parent == launcher => Ok(()),
            (0, _) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `ask` allocates nothing and takes no lock, as is due between fork and exec.
    unsafe { command.pre_exec(ask) };
}
