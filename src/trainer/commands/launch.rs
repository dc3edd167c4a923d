//! `train launch`: checks the settings of its processes once, before any of them is started.

use std::ffi::OsString;

use crate::config::{Request, resolve};
use crate::error::Result;
use crate::launch;
use crate::trainer::phases::listen;

/// Starts `processes` with `arguments`, which resolve to `request`; returns the exit code.
pub fn launch(processes: usize, arguments: &[OsString], mut request: Request) -> Result<u8> {
    listen(false);
    let first = launch::environment::variables_of_first(processes);
    request.environment.retain(|(name, _)| first.iter().all(|(set, _)| set != name));
    request.environment.extend(first);
    launch::launch(processes, arguments, &resolve(&request)?.config.parallel)
}
