//! A last line if the process is aborted under a limit on its memory: without memory, Rust and C++ abort with none.

use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGABRT;
use signal_hook::low_level::{exit, register};

/// Ends the process with a clear line if a system limit leaves no memory; does nothing without such a limit.
pub(crate) fn explain() {
    let limit = |(resource, flag): (Resource, &str)| {
        let kib = getrlimit(resource).current? / 1024;
        Some(format!(
            "train: aborted, most likely for lack of memory: 'ulimit {flag}' allows {kib} KiB; raise it, or lower \
             --batch-size or the number of replicas\n"
        ))
    };
    let Some(text) = [(Resource::As, "-v"), (Resource::Data, "-d")].into_iter().find_map(limit) else { return };
    let say = move || {
        // SAFETY: writes from memory that lives as long as the process. Neither call takes a lock or allocates.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        exit(1);
    };
    // SAFETY: only calls that a signal handler may make.
    let registered = unsafe { register(SIGABRT, say) };
    drop(registered);
}
