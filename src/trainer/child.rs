//! Runs this program as a child process, for commands that consist of several runs.
//!
//! As for a launch (see [`kiln_membership::processes`]), a signal to this process reaches every child once and lets it
//! save, and a child is killed if this process is.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use kiln_membership::exit_policy::ExitPolicy;
use kiln_membership::output::Sink;
use kiln_membership::processes::{Event, GRACE, command, listen, supervise};
use kiln_system::{Error, Result};
use parking_lot::Mutex;

#[derive(Debug)]
pub(super) struct Ended {
    /// Its exit code; 128 + signal if one killed it.
    pub(super) code: u8,
    /// The line that most likely says why it failed.
    pub(super) error_line: Option<String>,
}

impl Ended {
    pub(super) fn why(&self) -> String {
        let line = self.error_line.as_deref().map(|line| line.trim_start_matches("train: ").to_string());
        line.unwrap_or_else(|| format!("exit code {}", self.code))
    }
}

/// Starts `train ARGUMENTS` in the environment of this process and waits for its end; what it prints goes where this
/// process prints, or nowhere if `quiet`.
///
/// From the first call on, signals no longer end this process: calls after one start nothing. Several threads may run a
/// child each.
///
/// # Errors
/// [`Error::Stopped`] if this process must end too, because it was signalled.
pub(super) fn run(arguments: impl IntoIterator<Item = impl Into<OsString>>, quiet: bool) -> Result<Ended> {
    let (post, events) = channel();
    if let Some(signal) = pass_signals(&post)? {
        return Err(Error::Stopped(code_of(signal)));
    }
    let program = std::env::current_exe().map_err(Error::io("find", "train"))?;
    let child = command(&program, &arguments.into_iter().map(Into::into).collect::<Vec<OsString>>());
    let [stdout, stderr]: [Sink; 2] = if quiet {
        [Arc::new(Mutex::new(io::sink())), Arc::new(Mutex::new(io::sink()))]
    } else {
        [Arc::new(Mutex::new(io::stdout())), Arc::new(Mutex::new(io::stderr()))]
    };
    let policy = ExitPolicy::new(Some(GRACE));
    let (policy, mut error_lines) = supervise(vec![child], 0, &post, &events, stdout, stderr, policy)?;
    match (policy.code(), policy.signal()) {
        (0, Some(signal)) => Err(Error::Stopped(code_of(signal))),
        (code, signal) if signal.is_some() || code != 0 && policy.failure().is_none() => Err(Error::Stopped(code)),
        (code, _) => Ok(Ended { code, error_line: error_lines.pop().flatten() }),
    }
}

/// The signals to this process, for all its children.
struct Signals {
    listens: bool,
    first: Option<i32>,
    /// Senders of events to the children; closed for children that have ended.
    children: Vec<Sender<Event>>,
}

static SIGNALS: Mutex<Signals> = Mutex::new(Signals { listens: false, first: None, children: Vec::new() });

/// Passes signals to a new child from now on, or returns the one that came before.
fn pass_signals(child: &Sender<Event>) -> Result<Option<i32>> {
    let mut signals = SIGNALS.lock();
    if !signals.listens {
        let (post, events) = channel();
        let failed = || Error::io("listen to signals of", "this process");
        listen(post).map_err(failed())?;
        let forward = move || events.into_iter().for_each(forward);
        thread::Builder::new().name("forward-signals".into()).spawn(forward).map_err(failed())?;
        signals.listens = true;
    }
    if signals.first.is_none() {
        signals.children.push(child.clone());
    }
    Ok(signals.first)
}

fn forward(event: Event) {
    let mut signals = SIGNALS.lock();
    if let Event::Signal(signal) = event {
        signals.first.get_or_insert(signal);
    }
    signals.children.retain(|child| child.send(event).is_ok());
}

/// The exit code by convention of the shell.
fn code_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}
