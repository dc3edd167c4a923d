//! This program once more, as a process of its own: for commands that are made of several runs.
//!
//! What holds for the processes of a launch holds here: a signal to this process reaches the child once and lets it
//! save, and if this process is killed, so is the child. How that is done is left to [`crate::launch::processes`].

use std::ffi::OsString;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::launch::course::Course;
use crate::launch::output::Sink;
use crate::launch::processes::{Event, GRACE, accompany, command, listen};

/// This program with other arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    arguments: Vec<OsString>,
}

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code; 128 + signal if one killed it.
    pub code: u8,
    /// The code with which this process is to end as well, because it was signalled.
    pub stop: Option<u8>,
    /// The line that most likely tells why it failed.
    pub last_words: Option<String>,
}

impl Child {
    /// Of `train ARGUMENTS`; the environment is that of this process.
    pub fn new(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self { arguments: arguments.into_iter().map(Into::into).collect() }
    }

    /// Starts it and waits for its end; what it prints goes where this process prints, or nowhere if `quiet`.
    ///
    /// From the first call on, signals no longer end this process: one that comes while no child runs is the answer of
    /// the next call. Call it on a thread that lives as long as the process: the kernel kills a child when the thread
    /// that started it ends.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be started.
    pub fn run(&self, quiet: bool) -> Result<Ended> {
        static EVENTS: Mutex<Option<(Sender<Event>, Receiver<Event>)>> = Mutex::new(None);
        let mut shared = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.is_none() {
            let (post, events) = channel();
            listen(post.clone()).map_err(Error::io("listen to signals of", "this process"))?;
            *shared = Some((post, events));
        }
        let (post, events) = shared.as_ref().expect("it was just made");
        if let Ok(Event::Signal(signal)) = events.try_recv() {
            let code = code_of(signal);
            return Ok(Ended { code, stop: Some(code), last_words: None });
        }
        let program = std::env::current_exe().map_err(Error::io("find", "train"))?;
        let child = command(&program, &self.arguments);
        let [stdout, stderr] = if quiet { [nowhere(), nowhere()] } else { streams() };
        let (course, mut last_words) = accompany(vec![child], post, events, stdout, stderr, Course::new(GRACE))?;
        let code = course.code();
        let stopped = (code != 0 && course.failure().is_none()).then_some(code);
        let stop = stopped.or(course.signal().map(|signal| if code == 0 { code_of(signal) } else { code }));
        Ok(Ended { code, stop, last_words: last_words.pop().flatten() })
    }
}

/// The exit code by convention of the shell.
fn code_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}

fn nowhere() -> Sink {
    Arc::new(Mutex::new(io::sink()))
}

fn streams() -> [Sink; 2] {
    [Arc::new(Mutex::new(io::stdout())), Arc::new(Mutex::new(io::stderr()))]
}
