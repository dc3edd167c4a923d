//! `train launch`: checks the settings of its processes once, before any of them is started.

use std::ffi::OsString;

use crate::config::{Request, resolve};
use crate::error::Result;
use crate::launch::{self, Machines};
use crate::trainer::phases::listen;

/// Starts `processes` with `arguments`, which resolve to `request`, on this one of the `machines`; returns the exit
/// code.
pub fn launch(processes: usize, machines: &Machines, arguments: &[OsString], mut request: Request) -> Result<u8> {
    listen(false);
    let first = machines.variables_of_first(processes);
    request.environment.retain(|(name, _)| first.iter().all(|(set, _)| set != name));
    request.environment.extend(first);
    launch::launch(processes, machines, arguments, &resolve(&request)?.config.parallel)
}
