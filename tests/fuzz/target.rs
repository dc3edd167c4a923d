//! A target: a reader, what is given to it, and what holds whatever it is given.

use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kiln_system::{Error, Result};

use super::damage::Random;
use super::memory::Meter;

/// Twentieths of a second that an input may take.
const PATIENCE: u32 = 1200;
/// What the process itself takes now and then, as for its threads.
const SLACK: usize = 64 << 20;

/// Peaks of memory are those of the process, so one target runs at a time.
static ALONE: Mutex<()> = Mutex::new(());
/// How to repeat the current input.
static REPLAY: Mutex<String> = Mutex::new(String::new());
/// Counts inputs; odd while one is being read.
static CLOCK: AtomicU64 = AtomicU64::new(0);
/// Counts panics of all threads.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// How a target is held to account.
pub struct Bound {
    /// The most memory for an input: so many times its length,
    pub factor: usize,
    /// and so many MiB.
    pub mib: usize,
    /// How many inputs `cargo test` gives.
    pub inputs: u64,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().expect("a number"))
}

/// Whether there is a result. An error is a line, or a line for each fault.
pub fn accepted<T>(result: &Result<T>) -> bool {
    let Err(error) = result else { return true };
    let lines = match error {
        Error::Usage(lines) => lines.clone(),
        _ => vec![error.to_string()],
    };
    assert!(!lines.is_empty() && lines.iter().all(|line| line.lines().count() == 1), "{lines:?}");
    false
}

/// Gives `read` input after input. It returns the length of what it read, and whether that was accepted.
pub fn fuzz(bound: Bound, read: impl Fn(&mut Random) -> (usize, bool)) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    watch();
    let name = thread::current().name().unwrap_or_default().to_string();
    if let Some(seed) = number("KILN_SEED") {
        let (taken, accepted) = one(&name, seed, &bound, &read);
        return println!("{name} {seed}: {} MiB, {}", taken >> 20, if accepted { "accepted" } else { "refused" });
    }
    let (start, seconds) = (Instant::now(), number("KILN_SECONDS").map(Duration::from_secs));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let first = seconds.map_or(0, |_| now << 20);
    let (mut inputs, mut accepted, mut most) = (0, 0, 0);
    while seconds.map_or(inputs < bound.inputs, |limit| start.elapsed() < limit) {
        let (taken, was_accepted) = one(&name, first + inputs, &bound, &read);
        (inputs, accepted, most) = (inputs + 1, accepted + u64::from(was_accepted), most.max(taken));
    }
    println!("{name}: {inputs} inputs in {:.0?}, {accepted} accepted, at most {} MiB", start.elapsed(), most >> 20);
    assert!(0 < accepted && accepted < inputs, "of {inputs} inputs {accepted} were accepted: the damage is not right");
}

/// Gives one input; returns how much memory it took, and whether it was accepted.
fn one(name: &str, seed: u64, bound: &Bound, read: &impl Fn(&mut Random) -> (usize, bool)) -> (usize, bool) {
    *REPLAY.lock().unwrap() = format!("\nrepeat it with: make fuzz TARGET={name} SEED={seed}\n");
    CLOCK.fetch_add(1, Relaxed);
    let panics = PANICS.load(Relaxed);
    let meter = Meter::start();
    let outcome = catch_unwind(AssertUnwindSafe(|| read(&mut Random(seed))));
    let taken = meter.peak();
    CLOCK.fetch_add(1, Relaxed);
    let replay = REPLAY.lock().unwrap().clone();
    let (length, accepted) = outcome.unwrap_or_else(|panic| {
        eprint!("{replay}");
        resume_unwind(panic)
    });
    assert_eq!(PANICS.load(Relaxed), panics, "another thread panicked; {replay}");
    let most = length * bound.factor + (bound.mib << 20) + SLACK;
    assert!(taken <= most, "{length} bytes took {taken} bytes of memory, more than {most}; {replay}");
    (taken, accepted)
}

/// Ends the process, with a word about the input, when it hangs or does what cannot be caught.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // H2 has a debug assertion about its counters when a connection is dropped, which hostile frames break. A
            // damaged Parquet file makes its crate panic, which is caught.
            let known = |place: &Location| ["/h2-", "/parquet-", "/bytes-"].iter().any(|it| place.file().contains(it));
            if !panic.location().is_some_and(known) {
                PANICS.fetch_add(1, Relaxed);
                usual(panic);
            }
        }));
        for signal in [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
            // SAFETY: a zeroed `sigaction` is valid, and the handler only writes and reads what exists for ever.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = last_words as *const () as usize;
                action.sa_flags = libc::SA_ONSTACK | libc::SA_RESETHAND;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        thread::spawn(|| {
            let (mut seen, mut ticks) = (0, 0);
            // Ticks instead of a clock, which goes on while the process is stopped.
            loop {
                thread::sleep(Duration::from_millis(50));
                let now = CLOCK.load(Relaxed);
                ticks = if now == seen && now % 2 == 1 { ticks + 1 } else { 0 };
                seen = now;
                if ticks > PATIENCE {
                    eprintln!("an input is read for more than {} s", PATIENCE / 20);
                    std::process::abort();
                }
            }
        });
    });
}

extern "C" fn last_words(_signal: i32) {
    if let Ok(replay) = REPLAY.try_lock() {
        // SAFETY: the bytes are there, and standard error may be closed.
        unsafe { libc::write(2, replay.as_ptr().cast(), replay.len()) };
    }
}
