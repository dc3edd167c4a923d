//! The `train` command: prepare the process, parse, run, exit code.

mod abort;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod allocator;

use std::panic::{catch_unwind, resume_unwind};
use std::process::ExitCode;

use kiln::cli::parse;
use kiln::metrics::screen;
use kiln::metrics::utilization::{BY_BUS, ORDER};
use kiln::trainer::warn;
use kiln_data::is_decoding;
use kiln_engine::parallel::memory_error;
use kiln_system::stop::{leave, survive_file_limit};

fn main() -> ExitCode {
    number_devices();
    // Without it, a write beyond the limit ends the process, as it would have anyway.
    drop(survive_file_limit());
    quiet_replicas();
    abort::explain();
    let ended = catch_unwind(|| parse()?.run());
    match ended.unwrap_or_else(|panic| Err(memory_error(&*panic).unwrap_or_else(|| resume_unwind(panic)))) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            error.to_string().lines().for_each(warn);
            // Without waiting for replicas that hang.
            leave(error.exit_code().into())
        }
    }
}

/// A replica that panics, or its loader, ends the run with an error that names the replica, a decoder of images with
/// one that names the image, and any thread without memory with one that says so; the panic's own report would only
/// repeat it.
fn quiet_replicas() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let replica = std::thread::current().name().is_some_and(|name| name.starts_with("replica-"));
        if !replica && !is_decoding() && memory_error(panic.payload()).is_none() {
            screen::close();
            report(panic);
        }
    }));
}

/// Makes CUDA number devices like NVML and `nvidia-smi`, by their place on the bus, unless the user chose an order.
fn number_devices() {
    if std::env::var_os(ORDER).is_none() {
        // SAFETY: no thread exists yet that could read the environment.
        unsafe { std::env::set_var(ORDER, BY_BUS) };
    }
}
