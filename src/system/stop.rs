//! A request to end a run before its last step, or to save it: one value, shared by the code that sets it and the code
//! that reads it.
//!
//! The first reason wins. Replicas are not interrupted: they read the value in every step and agree on it in the
//! exchange of losses, so all of them stop after the same step.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ};
use signal_hook::low_level::signal_name;

/// The signals that request a stop: of people, of schedulers before a time limit, and of shells that close.
pub const STOPPING: [i32; 6] = [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU];

/// How long a process that ends at once waits for a checkpoint that is being written.
const SAVING: Duration = Duration::from_secs(3);
/// How long it waits for restoring the terminal.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a run ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    Signal(i32),
    /// `--max-time` is over.
    MaxTime,
    /// A failure outside of the replicas, such as writing a checkpoint.
    Failure(String),
}

/// Numbers of reasons other than signals; Linux has 64 signals.
const MAX_TIME: u32 = 1000;
const FAILURE: u32 = 1001;

impl Reason {
    /// The exit code: 128 + signal by convention of the shell; 0 for a run that used up its time, as requested.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Signal(number) => 128 + *number as u8,
            Self::MaxTime => 0,
            Self::Failure(_) => 1,
        }
    }

    pub fn number(&self) -> u32 {
        match self {
            Self::Signal(number) => number.unsigned_abs(),
            Self::MaxTime => MAX_TIME,
            Self::Failure(_) => FAILURE,
        }
    }

    /// The reason with this number; `None` for 0.
    pub fn of_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => return None,
            MAX_TIME => Self::MaxTime,
            FAILURE => Self::Failure("another process failed".into()),
            signal => Self::Signal(signal as i32),
        })
    }
}

/// Formatted to follow "stopped by".
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(SIGINT) => f.write_str("Ctrl-C (SIGINT)"),
            Self::Signal(number) => match signal_name(*number) {
                Some(name) => f.write_str(name),
                None => write!(f, "signal {number}"),
            },
            Self::MaxTime => f.write_str("--max-time"),
            Self::Failure(why) => f.write_str(why),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It ends the process, which has nothing to save yet.
    Early,
    First,
    /// It ends the process at once, though a stop was requested.
    Again,
}

/// The state of a [`Stop`].
struct Instead(Box<dyn Fn(i32) -> bool + Send + Sync>);

impl fmt::Debug for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instead")
    }
}

/// A shared, write-once request to stop.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    reason: Arc<OnceLock<Reason>>,
    /// The time limit, and when it ends.
    deadline: Arc<Mutex<Option<(Instant, Duration)>>>,
    /// Called for a signal; if it returns true, the signal does not stop the run.
    instead: Arc<OnceLock<Instead>>,
    begun: Arc<AtomicBool>,
    wants_save: Arc<AtomicBool>,
}

impl Stop {
    /// Without a request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests a stop when `limit` has passed.
    pub fn with_time_limit(limit: Duration) -> Self {
        let end = Instant::now().checked_add(limit).map(|end| (end, limit));
        Self { deadline: Arc::new(Mutex::new(end)), ..Self::default() }
    }

    /// Subtracts time that other processes have spent from the time limit.
    pub fn spent(&self, time: Duration) {
        let mut deadline = self.deadline.lock();
        *deadline = deadline.and_then(|(end, limit)| {
            let earlier = Instant::now().checked_add(limit.saturating_sub(time))?;
            Some((end.min(earlier), limit))
        });
    }

    /// From now on a signal calls `act` with its number, and requests a stop only if that returns false.
    pub fn instead(&self, act: impl Fn(i32) -> bool + Send + Sync + 'static) {
        let _ = self.instead.set(Instead(Box::new(act)));
    }

    pub fn request(&self, reason: Reason) {
        let _ = self.reason.set(reason);
    }

    pub fn reason(&self) -> Option<Reason> {
        if self.deadline.lock().is_some_and(|(end, _)| Instant::now() >= end) {
            self.request(Reason::MaxTime);
        }
        self.reason.get().cloned()
    }

    /// Asks for a checkpoint after the next step; the run goes on.
    pub fn request_save(&self) {
        self.wants_save.store(true, Ordering::SeqCst);
    }

    pub fn wants_save(&self) -> bool {
        self.wants_save.load(Ordering::SeqCst)
    }

    /// Notes that a checkpoint is made, as [`Stop::request_save`] asked for.
    pub fn saved(&self) {
        self.wants_save.store(false, Ordering::SeqCst);
    }

    /// The signals of [`STOPPING`] request a stop. A SIGINT after any signal ends the process at once; the others do
    /// not, since schedulers may send them more than once.
    ///
    /// Until [`Stop::begin`] there is nothing to save, so a signal ends the process. `tell` is called before a process
    /// ends, and beside the first request.
    pub fn listen_to_signals(&self, tell: impl Fn(Heard) + Send + Sync + 'static) -> std::io::Result<()> {
        let mut signals = signal_hook::iterator::Signals::new(heard())?;
        let (stop, tell) = (self.clone(), Arc::new(tell));
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for (seen, signal) in signals.forever().enumerate() {
                let tell = tell.clone();
                if !stop.begun.load(Ordering::SeqCst) {
                    tell(Heard::Early);
                    leave(128 + signal);
                }
                if seen > 0 && signal == SIGINT {
                    let _ = aside(move || tell(Heard::Again)).recv_timeout(RESTORE_TIMEOUT);
                    leave(128 + signal);
                }
                if !stop.instead.get().is_some_and(|instead| (instead.0)(signal)) {
                    if seen == 0 {
                        aside(move || tell(Heard::First));
                    }
                    stop.request(Reason::Signal(signal));
                }
            }
        })?;
        Ok(())
    }

    /// From now on a signal requests a stop instead of ending the process.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
    }
}

/// The signals of [`STOPPING`] that this process was not started to ignore, as `nohup` ignores SIGHUP.
pub fn heard() -> Vec<i32> {
    // SAFETY: all zeros is a valid `sigaction`, and the call only fills it.
    let is_ignored = |signal: &i32| unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(*signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    };
    STOPPING.into_iter().filter(|signal| !is_ignored(signal)).collect()
}

/// Lets a write beyond the limit for the size of files fail, instead of ending the process by SIGXFSZ.
///
/// # Errors
/// That of the system.
pub fn survive_file_limit() -> std::io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// Read-locked while a checkpoint is written, write-locked to end the process.
static WRITING: RwLock<()> = RwLock::new(());
static RESTORE: OnceLock<fn()> = OnceLock::new();

/// While the guard exists, [`leave`] waits for a short time before it ends the process.
pub fn writing() -> RwLockReadGuard<'static, ()> {
    WRITING.read()
}

/// From now on [`leave`] calls `restore` before the process ends.
pub fn restore_by(restore: fn()) {
    let _ = RESTORE.set(restore);
}

/// Ends the process with `code` while replicas may still compute: without destructors, since that of LibTorch's global
/// state would crash them.
pub fn leave(code: i32) -> ! {
    std::mem::forget(WRITING.try_write_for(SAVING));
    let restored = aside(|| {
        RESTORE.get().inspect(|restore| restore());
        drop(std::io::stdout().flush());
    });
    let _ = restored.recv_timeout(RESTORE_TIMEOUT);
    signal_hook::low_level::exit(code)
}

/// Acts on another thread, since a terminal that does not accept output may block; the receiver hears when it is done.
fn aside(act: impl FnOnce() + Send + 'static) -> Receiver<()> {
    let (done, is_done) = channel();
    // If there is no thread, the receiver hears it at once.
    drop(std::thread::Builder::new().spawn(move || {
        act();
        let _ = done.send(());
    }));
    is_done
}
