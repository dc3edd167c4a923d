//! Why a run should end before its last step: one value, handed to whoever may stop it or must notice.
//!
//! The first reason wins; later ones change nothing. Nobody is interrupted: replicas read the value at the end of a
//! step and agree on it in the same reduction, so all of them stop after the same step.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::low_level::signal_name;

/// How long a process that ends at once waits for a checkpoint that is being written.
const SAVING: Duration = Duration::from_secs(3);
/// How long it waits for the terminal.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why a run ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A signal, by its number.
    Signal(i32),
    /// `--max-time` is over.
    MaxTime,
    /// Something beside the replicas failed, such as the writing of a checkpoint.
    Failure(String),
}

/// Numbers of reasons that are no signal; Linux has 64 signals.
const MAX_TIME: u32 = 1000;
const FAILURE: u32 = 1001;

impl Reason {
    /// The exit code by convention of the shell: 128 + signal; a run that used up its time has done what was asked.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Signal(number) => 128 + *number as u8,
            Self::MaxTime => 0,
            Self::Failure(_) => 1,
        }
    }

    /// The reason as other processes hear it.
    pub fn number(&self) -> u32 {
        match self {
            Self::Signal(number) => number.unsigned_abs(),
            Self::MaxTime => MAX_TIME,
            Self::Failure(_) => FAILURE,
        }
    }

    /// The reason behind a number; none for 0.
    pub fn of_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => return None,
            MAX_TIME => Self::MaxTime,
            FAILURE => Self::Failure("another process failed".into()),
            signal => Self::Signal(signal as i32),
        })
    }
}

/// What stopped the run, after the words "stopped by".
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

/// What a signal does.
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
    /// When time is over, and the limit it follows from.
    deadline: Arc<Mutex<Option<(Instant, Duration)>>>,
    /// What a signal does instead of asking to stop, unless it declines.
    instead: Arc<OnceLock<Instead>>,
    /// Whether there is something to save.
    begun: Arc<AtomicBool>,
}

impl Stop {
    /// Nobody has asked to stop yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Stop::new`], and asks by itself once `limit` has passed.
    pub fn with_time_limit(limit: Duration) -> Self {
        let end = Instant::now().checked_add(limit).map(|end| (end, limit));
        Self { deadline: Arc::new(Mutex::new(end)), ..Self::default() }
    }

    /// So much of the time limit was spent before, by other processes.
    pub fn spent(&self, time: Duration) {
        let mut deadline = self.deadline();
        *deadline = deadline.and_then(|(end, limit)| {
            let earlier = Instant::now().checked_add(limit.saturating_sub(time))?;
            Some((end.min(earlier), limit))
        });
    }

    fn deadline(&self) -> MutexGuard<'_, Option<(Instant, Duration)>> {
        self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a signal calls `act` with its number, and asks to stop only where that answers false.
    pub fn instead(&self, act: impl Fn(i32) -> bool + Send + Sync + 'static) {
        let _ = self.instead.set(Instead(Box::new(act)));
    }

    /// Asks to stop; the first reason is kept.
    pub fn request(&self, reason: Reason) {
        let _ = self.reason.set(reason);
    }

    /// The reason to stop, if there is one by now.
    pub fn reason(&self) -> Option<Reason> {
        if self.deadline().is_some_and(|(end, _)| Instant::now() >= end) {
            self.request(Reason::MaxTime);
        }
        self.reason.get().cloned()
    }

    /// SIGINT, SIGTERM and SIGUSR1 ask to stop. A SIGINT that is not the first ends the process at once: somebody sits
    /// at a terminal and is tired of waiting. Schedulers send the others more than once and mean the same.
    ///
    /// Until [`Stop::begin`] there is nothing to save: a signal calls `early` and ends the process.
    pub fn listen_to_signals(&self, early: impl Fn() + Send + 'static) -> std::io::Result<()> {
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
        let stop = self.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for (seen, signal) in signals.forever().enumerate() {
                if !stop.begun.load(Ordering::SeqCst) {
                    early();
                    leave(128 + signal);
                }
                if seen > 0 && signal == SIGINT {
                    leave(128 + signal);
                }
                if !stop.instead.get().is_some_and(|instead| (instead.0)(signal)) {
                    stop.request(Reason::Signal(signal));
                }
            }
        })?;
        Ok(())
    }

    /// From now on a signal is a request.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
    }
}

/// Read by whoever writes what must not stay half-done, written by whoever ends the process.
static WRITING: RwLock<()> = RwLock::new(());
/// Gives the terminal back.
static RESTORE: OnceLock<fn()> = OnceLock::new();

/// While the guard lives, [`leave`] waits for a short time before it ends the process.
pub fn writing() -> RwLockReadGuard<'static, ()> {
    WRITING.read().unwrap_or_else(PoisonError::into_inner)
}

/// From now on [`leave`] calls `restore` before the process ends.
pub fn restore_by(restore: fn()) {
    let _ = RESTORE.set(restore);
}

/// Ends the process with `code` while replicas may still compute: no destructor runs that could take away what they
/// use (LibTorch's global state among it, which would end the process by a fault instead).
pub fn leave(code: i32) -> ! {
    let end = Instant::now() + SAVING;
    while let Err(TryLockError::WouldBlock) = WRITING.try_write().map(std::mem::forget)
        && Instant::now() < end
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    // On a thread of its own: a terminal that takes no output any more must not keep the process alive.
    let (done, is_done) = channel();
    let farewell = move || {
        RESTORE.get().inspect(|restore| restore());
        drop(std::io::stdout().flush());
        let _ = done.send(());
    };
    drop(std::thread::Builder::new().spawn(farewell).map(|_| is_done.recv_timeout(FAREWELL)));
    signal_hook::low_level::exit(code)
}
