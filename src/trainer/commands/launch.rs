//! `train launch`: checks the settings of its processes once, before any of them is started.

use std::ffi::OsString;

use crate::config::{Config, Request, resolve};
use crate::error::Result;
use crate::launch::{self, Machines};
use crate::parallel::ParallelConfig;
use crate::trainer::phases::listen;
use crate::trainer::terminal::say;

/// Starts `processes` with `arguments`, which resolve to `request`, on this one of the `machines`; returns the exit
/// code.
pub fn launch(processes: usize, machines: &Machines, arguments: &[OsString], mut request: Request) -> Result<u8> {
    listen(false);
    let first = machines.variables_of_first(processes);
    request.environment.retain(|(name, _)| first.iter().all(|(set, _)| set != name));
    request.environment.extend(first);
    let Config { run, parallel, .. } = resolve(&request)?.config;
    let job = if parallel.job_id == ParallelConfig::default().job_id {
        String::new()
    } else {
        format!(" --job-id {}", parallel.job_id)
    };
    let listening = |address: &str| {
        if run.progress.is_text() {
            say(&format!("rendezvous  {address}; who takes part: train members --dist-url {address}{job}"));
        }
    };
    launch::launch(processes, machines, arguments, &parallel, &listening)
}
