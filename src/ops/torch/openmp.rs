//! How long LibTorch's OpenMP threads spin at a barrier before they sleep.
//!
//! GNU's OpenMP spins 300,000 rounds by default, tens of milliseconds. Where another program uses one of the cores, a
//! thread that was preempted lets all others spin for its whole absence, so a step takes several times as long. Few
//! rounds bound that, and still save the wake-up between the operations of a step.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// What GNU's OpenMP reads when it is loaded; either one is the user's choice.
const VARIABLES: [&str; 2] = ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"];

/// Rounds before a thread sleeps, about a tenth of a millisecond.
const ROUNDS: &str = "4000";

/// Restarts this process with bounded spinning unless the environment chooses: OpenMP reads its environment when the
/// program is loaded, before `main`. Call this before anything has an effect. If the restart fails, OpenMP spins as it
/// does by default.
pub fn bound_spinning() {
    if VARIABLES.iter().any(|name| std::env::var_os(name).is_some()) {
        return;
    }
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    if let Ok(program) = std::env::current_exe() {
        let mut again = Command::new(program);
        again.arg0(name.unwrap_or_default()).args(arguments).env(VARIABLES[0], ROUNDS);
        // Returns only if it fails.
        let _error = again.exec();
    }
}
